//! How the cost of a cold start and of one change grows with the services and with the proxies.

use std::fmt::Write as _;

use crate::compare::{Lines, Programs, Who, compare};
use crate::measure::Measure;
use crate::shape::{Phase, Shape};

/// What was made larger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Axis {
    Services,
    Proxies,
}

/// One server along one axis: size, and processor time in milliseconds.
#[derive(Clone, PartialEq, Debug)]
pub struct Curve {
    pub axis: Axis,
    pub server: String,
    pub phase: Phase,
    pub points: Vec<(f64, f64)>,
}

impl Curve {
    /// The power of the size that fits best: 0 stays the same, 1 doubles when the size doubles.
    pub fn exponent(&self) -> Option<f64> {
        let logs: Vec<(f64, f64)> =
            self.points.iter().filter(|(_, y)| *y > 0.0).map(|(x, y)| (x.ln(), y.ln())).collect();
        if logs.len() < 2 {
            return None;
        }
        let count = logs.len() as f64;
        let mean_x = logs.iter().map(|(x, _)| x).sum::<f64>() / count;
        let mean_y = logs.iter().map(|(_, y)| y).sum::<f64>() / count;
        let covariance: f64 = logs.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
        let variance: f64 = logs.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
        (variance > 0.0).then(|| covariance / variance)
    }
}

/// The phases whose growth is told.
const PHASES: [Phase; 2] = [Phase::Cold, Phase::Endpoint];

/// Measures all sizes; each axis starts from the smallest size of the other.
pub async fn measure(
    base: &Shape,
    [services, proxies]: [&[usize]; 2],
    programs: &Programs,
    who: &[Who],
    lines: &Lines,
) -> anyhow::Result<(Vec<Measure>, Vec<Curve>)> {
    let shape = |services: usize, proxies: usize| Shape {
        services,
        proxies,
        phases: PHASES.to_vec(),
        namespaces: base.namespaces,
        ..base.clone()
    };
    let first = |sizes: &[usize], fallback: usize| sizes.first().copied().unwrap_or(fallback);
    let (few_services, few_proxies) = (first(services, base.services), first(proxies, base.proxies));
    let (mut measures, mut curves) = (Vec::new(), Vec::new());
    for (axis, sizes) in [(Axis::Services, services), (Axis::Proxies, proxies)] {
        let mut of_axis = Vec::new();
        for size in sizes {
            let shape = match axis {
                Axis::Services => shape(*size, few_proxies),
                Axis::Proxies => shape(few_services, *size),
            };
            shape.check()?;
            let name = format!("growth-{}x{}", shape.services, shape.proxies);
            of_axis.extend(compare(&name, &shape, programs, who, lines).await?);
        }
        curves.extend(curves_of(axis, &of_axis));
        measures.extend(of_axis);
    }
    Ok((measures, curves))
}

fn curves_of(axis: Axis, measures: &[Measure]) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    for measure in measures.iter().filter(|measure| PHASES.contains(&measure.phase)) {
        let size = match axis {
            Axis::Services => measure.services,
            Axis::Proxies => measure.proxies,
        };
        let point = (size as f64, measure.cpu_ms.unwrap_or(0.0));
        match curves.iter_mut().find(|curve| curve.server == measure.server && curve.phase == measure.phase) {
            Some(curve) => curve.points.push(point),
            None => {
                let (server, phase) = (measure.server.clone(), measure.phase);
                curves.push(Curve { axis, server, phase, points: vec![point] });
            }
        }
    }
    curves
}

/// The exponents, as a table.
pub fn render(curves: &[Curve]) -> String {
    let mut out =
        String::from("\n| growth of CPU | server | sizes | ms | exponent |\n|---|---|---|---|---:|\n");
    for curve in curves {
        let list = |of: fn(&(f64, f64)) -> f64, digits: usize| -> String {
            let texts: Vec<String> =
                curve.points.iter().map(|point| format!("{:.digits$}", of(point))).collect();
            texts.join(", ")
        };
        let exponent = curve.exponent().map_or_else(String::new, |exponent| format!("{exponent:.2}"));
        let _infallible = writeln!(
            out,
            "| {:?} with {:?} | {} | {} | {} | {exponent} |",
            curve.phase,
            curve.axis,
            curve.server,
            list(|point| point.0, 0),
            list(|point| point.1, 1),
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{Axis, Curve, render};
    use crate::shape::Phase;

    fn curve(points: &[(f64, f64)]) -> Curve {
        Curve {
            axis: Axis::Services,
            server: "pilot".to_owned(),
            phase: Phase::Cold,
            points: points.to_vec(),
        }
    }

    #[test]
    fn exponents_are_those_of_powers() {
        let near = |points: &[(f64, f64)], wanted: f64| {
            let exponent = curve(points).exponent().unwrap();
            assert!((exponent - wanted).abs() < 1e-9, "{exponent}");
        };
        near(&[(100.0, 7.0), (200.0, 7.0), (400.0, 7.0)], 0.0);
        near(&[(100.0, 3.0), (200.0, 6.0)], 1.0);
        near(&[(10.0, 1.0), (20.0, 4.0), (40.0, 16.0)], 2.0);
        assert_eq!(curve(&[(10.0, 1.0)]).exponent(), None);
        assert_eq!(curve(&[(10.0, 1.0), (10.0, 2.0)]).exponent(), None);
        assert!(render(&[curve(&[(10.0, 1.0)])]).contains("| Cold with Services | pilot | 10 | 1.0 |  |"));
    }
}

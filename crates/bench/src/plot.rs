//! A picture of the growth: two panels with logarithmic axes, written by hand because nothing more is needed.

use std::fmt::Write as _;

use crate::growth::{Axis, Curve};
use crate::shape::Phase;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 420.0;
/// Room for a panel's numbers and words.
const LEFT: f64 = 60.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 60.0;
const PANEL: f64 = 330.0;
const COLOURS: [&str; 4] = ["#1b6ca8", "#888888", "#c0392b", "#2e8b57"];

/// The picture as SVG.
pub fn render(curves: &[Curve]) -> String {
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    let mut servers: Vec<&str> = Vec::new();
    for curve in curves {
        if !servers.contains(&curve.server.as_str()) {
            servers.push(&curve.server);
        }
    }
    for (axis, x) in [(Axis::Services, LEFT), (Axis::Proxies, LEFT + PANEL + 110.0)] {
        let of_axis: Vec<&Curve> =
            curves.iter().filter(|curve| curve.axis == axis && !curve.points.is_empty()).collect();
        panel(axis, x, &of_axis, &servers, &mut out);
    }
    legend(&servers, &mut out);
    out.push_str("</svg>\n");
    out
}

/// Where values stand on an axis.
struct Scale {
    least: f64,
    most: f64,
    from: f64,
    to: f64,
}

impl Scale {
    fn of(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (least, most) = values
            .filter(|value| *value > 0.0)
            .fold((f64::MAX, f64::MIN_POSITIVE), |(least, most), value| (least.min(value), most.max(value)));
        // One value alone stands in the middle.
        let (least, most) = if most > least { (least, most) } else { (most / 2.0, most * 2.0) };
        Self { least: least.ln(), most: most.ln(), from, to }
    }

    fn place(&self, value: f64) -> f64 {
        let share = (value.max(f64::MIN_POSITIVE).ln() - self.least) / (self.most - self.least);
        // What cost nothing at all stands at the edge.
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }
}

fn panel(axis: Axis, x: f64, curves: &[&Curve], servers: &[&str], out: &mut String) {
    let (bottom, right) = (HEIGHT - BOTTOM, x + PANEL);
    let points = || curves.iter().flat_map(|curve| curve.points.iter());
    let across = Scale::of(points().map(|point| point.0), x + 15.0, right - 15.0);
    let up = Scale::of(points().map(|point| point.1), bottom - 15.0, TOP + 15.0);
    let title = format!("{axis:?}").to_lowercase();
    let _infallible = writeln!(
        out,
        "<path d=\"M{x} {TOP}V{bottom}H{right}\" fill=\"none\" stroke=\"black\"/>\n\
         <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">number of {title}</text>\n\
         <text x=\"{x}\" y=\"{}\">CPU ms, both axes logarithmic</text>",
        x + PANEL / 2.0,
        bottom + 35.0,
        TOP - 12.0,
    );
    let mut sizes: Vec<f64> = points().map(|point| point.0).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    for size in sizes {
        let at = across.place(size);
        let _infallible =
            writeln!(out, "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{size}</text>", bottom + 17.0);
    }
    for curve in curves {
        line(curve, servers, (&across, &up), out);
    }
}

fn line(curve: &Curve, servers: &[&str], (across, up): (&Scale, &Scale), out: &mut String) {
    let colour = colour(servers, &curve.server);
    let dashes = if curve.phase == Phase::Cold { "" } else { " stroke-dasharray=\"5 4\"" };
    let places: Vec<(f64, f64)> =
        curve.points.iter().map(|(x, y)| (across.place(*x), up.place(*y))).collect();
    let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _infallible = writeln!(
        out,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/>",
        path.join(" ")
    );
    for ((x, y), (_, value)) in places.iter().zip(&curve.points) {
        let _infallible = writeln!(
            out,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"10\">{value:.1}</text>",
            y - 7.0
        );
    }
}

fn legend(servers: &[&str], out: &mut String) {
    let y = HEIGHT - 8.0;
    for (at, server) in servers.iter().enumerate() {
        let x = LEFT + 110.0 * at as f64;
        let _infallible =
            writeln!(out, "<text x=\"{x}\" y=\"{y}\" fill=\"{}\">{server}</text>", colour(servers, server));
    }
    let _infallible = writeln!(
        out,
        "<text x=\"{}\" y=\"{y}\" text-anchor=\"end\">full: all proxies connect; dashed: one endpoint changes</text>",
        WIDTH - 20.0
    );
}

fn colour(servers: &[&str], server: &str) -> &'static str {
    let at = servers.iter().position(|one| *one == server).unwrap_or(0);
    COLOURS[at % COLOURS.len()]
}

#[cfg(test)]
mod tests {
    use super::render;
    use crate::growth::{Axis, Curve};
    use crate::shape::Phase;

    #[test]
    fn every_point_of_every_curve_is_drawn_inside_the_picture() {
        let curve = |axis, phase, points: &[(f64, f64)]| Curve {
            axis,
            phase,
            server: "pilot".to_owned(),
            points: points.to_vec(),
        };
        let picture = render(&[
            curve(Axis::Services, Phase::Cold, &[(100.0, 50.0), (200.0, 110.0)]),
            curve(Axis::Proxies, Phase::Endpoint, &[(10.0, 0.0)]),
            curve(Axis::Proxies, Phase::Cold, &[]),
        ]);
        assert_eq!((picture.matches("<circle").count(), picture.matches("<polyline").count()), (3, 2));
        assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"));
        assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
    }
}

//! How metrics come into being: made and registered in one step.

use pilot_xds::TypeUrl;
use prometheus::core::Collector;
use prometheus::{
    Counter, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, Result,
};

/// One metric for each type of resource, found without a look at its name: pushes are counted thousands of times a second.
pub(super) type PerType<T> = [T; TypeUrl::ALL.len()];

pub(super) struct Register<'a>(pub(super) &'a Registry);

impl Register<'_> {
    pub(super) fn counter(&self, name: &str, help: &str) -> Result<IntCounter> {
        self.keep(IntCounter::new(name, help)?)
    }

    /// A counter of fractions.
    pub(super) fn sum(&self, name: &str, help: &str) -> Result<Counter> {
        self.keep(Counter::new(name, help)?)
    }

    pub(super) fn counters(&self, name: &str, help: &str) -> Result<IntCounterVec> {
        self.counters_by(name, help, "type")
    }

    pub(super) fn counters_by(&self, name: &str, help: &str, label: &str) -> Result<IntCounterVec> {
        self.counters_by_all(name, help, &[label])
    }

    pub(super) fn counters_by_all(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec> {
        self.keep(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    /// Counters with the short names of types.
    pub(super) fn counter_per_type(&self, name: &str, help: &str) -> Result<PerType<IntCounter>> {
        let all = self.counters(name, help)?;
        Ok(TypeUrl::ALL.map(|t| all.with_label_values(&[t.short()])))
    }

    pub(super) fn gauge(&self, name: &str, help: &str) -> Result<IntGauge> {
        self.keep(IntGauge::new(name, help)?)
    }

    pub(super) fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec> {
        self.keep(IntGaugeVec::new(Opts::new(name, help), labels)?)
    }

    pub(super) fn fractions(&self, name: &str, help: &str, labels: &[&str]) -> Result<GaugeVec> {
        self.keep(GaugeVec::new(Opts::new(name, help), labels)?)
    }

    pub(super) fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Result<Histogram> {
        self.keep(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))?)
    }

    pub(super) fn histogram_per_type(
        &self,
        (name, help): (&str, &str),
        buckets: &[f64],
        label: fn(TypeUrl) -> &'static str,
    ) -> Result<PerType<Histogram>> {
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        let all = self.keep(HistogramVec::new(options, &["type"])?)?;
        Ok(TypeUrl::ALL.map(|t| all.with_label_values(&[label(t)])))
    }

    pub(super) fn keep<T: Collector + Clone + 'static>(&self, metric: T) -> Result<T> {
        self.0.register(Box::new(metric.clone()))?;
        Ok(metric)
    }
}

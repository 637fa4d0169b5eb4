//! Delays and errors on purpose.

use pilot_envoy_api::envoy::extensions::filters::common::fault::v3::{FaultDelay, fault_delay};
use pilot_envoy_api::envoy::extensions::filters::http::fault::v3::{FaultAbort, HttpFault, fault_abort};
use pilot_envoy_api::to_any;
use pilot_model::{Abort, AbortError, Delay, Fault};
use prost_types::Any;

use crate::convert::{duration, fractional_percent};

/// What a route asks of the filter.
pub(crate) fn per_route(fault: &Fault) -> Any {
    let config = HttpFault {
        delay: fault.delay.as_ref().map(delay),
        abort: fault.abort.as_ref().map(abort),
        ..HttpFault::default()
    };
    to_any(&config)
}

fn delay(delay: &Delay) -> FaultDelay {
    FaultDelay {
        percentage: Some(fractional_percent(delay.percent)),
        fault_delay_secifier: Some(fault_delay::FaultDelaySecifier::FixedDelay(duration(delay.fixed))),
    }
}

fn abort(abort: &Abort) -> FaultAbort {
    use fault_abort::ErrorType;
    let error = match abort.error {
        AbortError::Http(status) => ErrorType::HttpStatus(status),
        AbortError::Grpc(status) => ErrorType::GrpcStatus(status),
    };
    FaultAbort {
        percentage: abort.percent.map(fractional_percent),
        error_type: Some(error),
        ..FaultAbort::default()
    }
}

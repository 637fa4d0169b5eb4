//! Small things of which Envoy's messages are made.

use pilot_base::{Cidr, Name};
use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::r#type::matcher::v3 as matcher;
use pilot_envoy_api::envoy::r#type::v3::{FractionalPercent, fractional_percent::DenominatorType};
use pilot_model::{Address, IpMode, Percent, Span, StringMatch};
use prost_types::Duration;

pub(crate) fn duration(span: Span) -> Duration {
    Duration {
        seconds: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(span.subsec_nanos()).unwrap_or(0),
    }
}

pub(crate) fn seconds(seconds: i64) -> Duration {
    Duration { seconds, nanos: 0 }
}

/// An address to listen at or to connect to.
pub(crate) fn socket_address(address: &str, port: u16) -> core::Address {
    use core::address::Address as Kind;
    use core::socket_address::PortSpecifier;
    let kind = match address.strip_prefix("unix://") {
        Some(path) => Kind::Pipe(core::Pipe { path: path.to_owned(), mode: 0 }),
        None => Kind::SocketAddress(core::SocketAddress {
            address: address.to_owned(),
            port_specifier: Some(PortSpecifier::PortValue(u32::from(port))),
            ..core::SocketAddress::default()
        }),
    };
    core::Address { address: Some(kind) }
}

pub(crate) fn endpoint_address(address: &Address, port: u16) -> core::Address {
    use core::address::Address as Kind;
    match address {
        Address::Ip(ip) => socket_address(&ip.to_string(), port),
        Address::Host(host) => socket_address(host, port),
        Address::Pipe(path) => {
            core::Address { address: Some(Kind::Pipe(core::Pipe { path: path.to_string(), mode: 0 })) }
        }
    }
}

/// An address to connect from, with any port.
pub(crate) fn bind_address(address: &str) -> core::SocketAddress {
    use core::socket_address::PortSpecifier;
    core::SocketAddress {
        address: address.to_owned(),
        port_specifier: Some(PortSpecifier::PortValue(0)),
        ..core::SocketAddress::default()
    }
}

/// The address that means all addresses. Proxies with both families listen at the first and, where that is switched on,
/// also at the second.
pub(crate) fn wildcards(mode: IpMode) -> &'static [&'static str] {
    match mode {
        IpMode::V4 => &["0.0.0.0"],
        IpMode::V6 => &["::"],
        IpMode::Dual => &["0.0.0.0", "::"],
    }
}

pub(crate) fn localhosts(mode: IpMode) -> &'static [&'static str] {
    match mode {
        IpMode::V4 => &["127.0.0.1"],
        IpMode::V6 => &["::1"],
        IpMode::Dual => &["127.0.0.1", "::1"],
    }
}

pub(crate) fn cidr_range(range: Cidr) -> core::CidrRange {
    core::CidrRange { address_prefix: range.base().to_string(), prefix_len: Some(u32::from(range.bits())) }
}

/// From these addresses the proxy calls its own application, so that redirection lets it through.
pub(crate) fn passthrough_binds(mode: IpMode) -> &'static [&'static str] {
    match mode {
        IpMode::V4 => &["127.0.0.6"],
        IpMode::V6 => &["::6"],
        IpMode::Dual => &["127.0.0.6", "::6"],
    }
}

/// Configuration that comes over the stream this came over.
pub(crate) fn ads_source() -> core::ConfigSource {
    use core::config_source::ConfigSourceSpecifier;
    core::ConfigSource {
        config_source_specifier: Some(ConfigSourceSpecifier::Ads(core::AggregatedConfigSource {})),
        initial_fetch_timeout: Some(seconds(0)),
        resource_api_version: core::ApiVersion::V3 as i32,
        ..core::ConfigSource::default()
    }
}

pub(crate) fn string_matcher(text: &StringMatch) -> matcher::StringMatcher {
    use matcher::string_matcher::MatchPattern;
    let pattern = match text {
        StringMatch::Exact(text) => MatchPattern::Exact(text.to_string()),
        StringMatch::Prefix(text) | StringMatch::Segments(text) => MatchPattern::Prefix(text.to_string()),
        StringMatch::Regex(text) => MatchPattern::SafeRegex(regex(text)),
    };
    matcher::StringMatcher { match_pattern: Some(pattern), ignore_case: false }
}

pub(crate) fn exact_matcher(text: &Name) -> matcher::StringMatcher {
    string_matcher(&StringMatch::Exact(text.clone()))
}

pub(crate) fn regex(text: &Name) -> matcher::RegexMatcher {
    matcher::RegexMatcher { regex: text.to_string(), ..matcher::RegexMatcher::default() }
}

/// Stat names end at a semicolon, so that what follows is not taken for a part of them.
pub(crate) fn stat_prefix(name: &str) -> String {
    format!("{name};")
}

/// A share of requests. A hundredth of a percent of a percent is as fine as Envoy counts.
pub(crate) fn fractional_percent(percent: Percent) -> FractionalPercent {
    match percent {
        Percent::Whole(numerator) => {
            FractionalPercent { numerator, denominator: DenominatorType::Hundred as i32 }
        }
        Percent::Exact(percent) => FractionalPercent {
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a share is from 0 to 100"
            )]
            numerator: (percent * 10_000.0) as u32,
            denominator: DenominatorType::Million as i32,
        },
    }
}

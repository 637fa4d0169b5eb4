//! Seeded simulation: the same seed gives the same run, so whatever it finds can be looked at again.
//!
//! * [`protocol_run`]: made-up resources, a hostile network and clients that refuse, over one `Session`. It checks that
//!   the client ends with what there is, never holds a route to a cluster it cannot use, is not asked to refuse the same
//!   thing twice, is told only differences when it comes back, and that the server never forgets to wake up. Some clients ask
//!   for clusters when a request needs them, some for listeners only when their clusters can be used, and what
//!   is large may wait on the server, while what is small overtakes it.
//! * [`plane_run`]: services and rules that change, through the whole pipeline, over one `Session`. It checks the same, and
//!   that a second replica which was told everything at once, in another order, has the same bytes, and that memory returns
//!   when everything is gone.
//! * [`evaluate`]: what would come of a call, given the configuration that a proxy holds: Envoy's part of the work,
//!   written down as far as Pilot makes use of it.

mod client;
pub mod evaluate;
mod mesh;
mod plane;
mod rng;
mod stream;
mod toy;

pub use client::{Client, Habit, Manner};
pub use mesh::Mesh;
pub use plane::{Facts, Plane, Width};
pub use rng::Rng;
pub use stream::{Findings, Stream};
pub use toy::Toy;

use pilot_xds::Protocol;

/// One run over made-up resources. An empty answer is a good one.
pub fn protocol_run(seed: u64) -> Findings {
    run_protocol(seed, &mut None)
}

/// The same run, told line by line.
pub fn protocol_trace(seed: u64) -> Vec<String> {
    let mut trace = Some(Vec::new());
    let findings = run_protocol(seed, &mut trace);
    trace.into_iter().flatten().chain(findings).collect()
}

fn run_protocol(seed: u64, trace: &mut Option<Vec<String>>) -> Findings {
    let mut rng = Rng::new(seed);
    let (protocol, width) = draw(&mut rng);
    let mut toy = Toy::new(&mut rng, width);
    let manner = if rng.chance(50) { Manner::NamesTheGuilty } else { Manner::NamesNobody };
    let steps = 20 + rng.below(400);
    let mut stream = Stream::new(&mut toy, protocol, manner, rng);
    let mut findings = Findings::new();
    stream.trace = trace.take();

    stream.run(steps);
    if !stream.settle() {
        findings.push("did not come to rest".to_owned());
    }
    // Nobody refuses any more: now everything must arrive.
    stream.plane.heal();
    stream.publish();
    if !stream.settle() {
        findings.push("did not come to rest after healing".to_owned());
    }
    findings.extend(stream.compare(|_| false));
    findings.extend(std::mem::take(&mut stream.client.dangling));
    if stream.client.refusals > 60 + 8 * stream.refusals_seen {
        findings.push(format!("{} refusals", stream.client.refusals));
    }

    // Back again with nothing changed: nothing is sent twice.
    let (received, refusals) = (stream.client.received, stream.client.refusals);
    stream.reset();
    stream.settle();
    if protocol == Protocol::Delta && stream.client.received != received {
        findings.push(format!("{} resources sent again", stream.client.received - received));
    }
    if stream.client.refusals != refusals {
        findings.push("refused something on the way back".to_owned());
    }
    findings.extend(stream.compare(|_| false));
    findings.extend(std::mem::take(&mut stream.client.dangling));
    *trace = stream.trace.take();
    findings.into_iter().map(|f| format!("seed {seed} ({protocol:?}, {width:?}, {manner:?}): {f}")).collect()
}

/// Only delta has words for asking on demand.
fn draw(rng: &mut Rng) -> (Protocol, Width) {
    match rng.below(4) {
        0 => (Protocol::Delta, Width::Everything),
        1 => (Protocol::Delta, Width::OnDemand),
        _ => (Protocol::StateOfTheWorld, Width::Everything),
    }
}

/// One run over a mesh of services and rules. An empty answer is a good one.
pub fn plane_run(seed: u64) -> Findings {
    let rng = Rng::new(seed ^ 0x5EED);
    run_plane(rng, &format!("seed {seed} (mesh"), Mesh::new)
}

/// The same with a thousand services.
pub fn large_plane_run(seed: u64) -> Findings {
    let rng = Rng::new(seed ^ 0xB16_5EED);
    run_plane(rng, &format!("seed {seed} (large mesh"), Mesh::large)
}

fn run_plane(mut rng: Rng, what: &str, make: fn(&mut Rng, Width) -> Mesh) -> Findings {
    let (protocol, width) = draw(&mut rng);
    let mut mesh = make(&mut rng, width);
    let steps = 20 + rng.below(100);
    let mut stream = Stream::new(&mut mesh, protocol, Manner::NamesTheGuilty, rng);
    let mut findings = Findings::new();
    stream.run(steps);
    if !stream.settle() {
        findings.push("did not come to rest".to_owned());
    }
    findings.extend(stream.compare(|_| false));
    findings.extend(std::mem::take(&mut stream.client.dangling));
    let received = stream.client.received;
    stream.reset();
    stream.settle();
    if protocol == Protocol::Delta && stream.client.received != received {
        findings.push(format!("{} resources sent again", stream.client.received - received));
    }
    findings.extend(mesh.differs_from_replica());
    findings.extend(mesh.remains());
    findings.into_iter().map(|f| format!("{what}, {protocol:?}, {width:?}): {f}")).collect()
}

#[cfg(test)]
mod tests {
    /// Several tests instead of one, so that they run side by side.
    macro_rules! seeds {
        ($($name:ident: $run:path, $from:literal;)*) => {
            $(#[test]
            fn $name() {
                let findings: Vec<String> = ($from..$from + 250).flat_map($run).take(10).collect();
                assert!(findings.is_empty(), "{}", findings.join("\n"));
            })*
        };
    }

    /// What was wrong once stays looked at: a stand-in that took no part in the search for who is refused, and routes that
    /// came before the listeners which name them.
    #[test]
    fn seeds_that_found_something_once() {
        let findings: Vec<String> =
            [15_983, 32_334, 33_181].into_iter().flat_map(crate::protocol_run).collect();
        assert!(findings.is_empty(), "{}", findings.join("\n"));
    }

    /// Endpoints whose time was up waited for their cluster, and nobody remembered when that was due.
    #[test]
    fn seeds_of_the_plane_that_found_something_once() {
        assert_eq!(crate::plane_run(481), Vec::<String>::new());
    }

    #[test]
    fn a_thousand_services() {
        let findings: Vec<String> = (0..4).flat_map(crate::large_plane_run).collect();
        assert!(findings.is_empty(), "{}", findings.join("\n"));
    }

    seeds! {
        protocol_1: crate::protocol_run, 0;
        protocol_2: crate::protocol_run, 250;
        protocol_3: crate::protocol_run, 500;
        protocol_4: crate::protocol_run, 750;
        plane_1: crate::plane_run, 0;
        plane_2: crate::plane_run, 250;
        plane_3: crate::plane_run, 500;
        plane_4: crate::plane_run, 750;
    }
}

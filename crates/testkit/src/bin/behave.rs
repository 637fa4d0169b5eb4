//! `behave ENGINE [TEXT]` runs the scenarios whose path contains a text, one after the other.

use std::path::Path;
use std::process::ExitCode;

use pilot_testkit::behave::{self, Engine, kube};
use pilot_testkit::namespace::{Entered, enter};
use pilot_testkit::scenario::{Scenario, load_all, load_changed};
use pilot_testkit::tools::Tools;

const SCENARIOS: &str = "tests/behaviour";

/// How it went.
#[derive(Default)]
struct Count {
    run: u32,
    bad: u32,
    other: u32,
}

fn main() -> anyhow::Result<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let engine = Engine::parse(words.first().map_or("sim", String::as_str))?;
    let only = words.get(1).cloned().unwrap_or_default();
    let tools = Tools::of_environment();
    let mut count = Count::default();
    if engine == Engine::Kube {
        match enter(&words)? {
            Entered::Done(true) => return Ok(ExitCode::SUCCESS),
            Entered::Done(false) => return Ok(ExitCode::FAILURE),
            Entered::Inside => {}
        }
        let mut scenarios = load_changed(Path::new(SCENARIOS), kube::moved)?;
        scenarios
            .retain(|(name, scenario)| name.contains(&only) && count.is_meant(name, kube::why_not(scenario)));
        kube::run(&scenarios, &tools, |name, scenario, wrong| count.tell(name, scenario, wrong))?;
    } else {
        for (name, scenario) in load_all(Path::new(SCENARIOS))? {
            let why_not = scenario.istiod.as_deref().filter(|_| engine == Engine::Istiod);
            if name.contains(&only) && count.is_meant(&name, why_not) {
                count.tell(&name, &scenario, behave::run(engine, &scenario, &tools));
            }
        }
    }
    let Count { run, bad, other } = count;
    println!("{run} scenarios, {bad} not as they should be");
    if other > 0 {
        println!("{other} more are not for this engine, on purpose");
    }
    Ok(if bad == 0 && run > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Count {
    fn is_meant(&mut self, name: &str, why_not: Option<&str>) -> bool {
        if let Some(why) = why_not {
            self.other += 1;
            println!("other {name}: {why}");
        }
        why_not.is_none()
    }

    fn tell(&mut self, name: &str, scenario: &Scenario, wrong: anyhow::Result<Vec<String>>) {
        let wrong = wrong.unwrap_or_else(|error| vec![format!("{error:#}")]);
        self.run += 1;
        if wrong.is_empty() {
            println!("ok    {name}");
        } else {
            self.bad += 1;
            println!("WRONG {name}: {}", scenario.about);
            wrong.iter().for_each(|wrong| println!("      {wrong}"));
        }
    }
}

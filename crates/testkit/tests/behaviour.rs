//! Every scenario is a test, on the simulator and on a real Envoy.

use std::path::PathBuf;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use pilot_testkit::behave::{self, Engine};
use pilot_testkit::scenario::{Scenario, load_all};
use pilot_testkit::tools::Tools;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/behaviour");
    let scenarios = match load_all(&folder) {
        Ok(scenarios) => scenarios,
        Err(error) => {
            eprintln!("a scenario cannot be read: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    let tools = Tools::of_environment();
    let why_skip = tools.why_skip_envoy();
    let mut trials = Vec::new();
    for (name, scenario) in scenarios {
        trials.push(trial("sim", Engine::Sim, &name, scenario.clone(), &tools));
        match &why_skip {
            None => trials.push(trial("envoy", Engine::Envoy, &name, scenario, &tools)),
            Some(why) => eprintln!("skipped: envoy::{name}: {why}"),
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(engine_name: &str, engine: Engine, name: &str, scenario: Scenario, tools: &Tools) -> Trial {
    let tools = tools.clone();
    Trial::test(format!("{engine_name}::{name}"), move || {
        let wrong = behave::run(engine, &scenario, &tools)?;
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(Failed::from(format!("{}\n{}", scenario.about, wrong.join("\n"))))
        }
    })
}

//! `behave ENGINE [TEXT]` runs the scenarios whose path contains a text, one after the other.

use std::path::PathBuf;
use std::process::ExitCode;

use pilot_testkit::behave::{self, Engine};
use pilot_testkit::scenario::load_all;
use pilot_testkit::tools::Tools;

fn main() -> anyhow::Result<ExitCode> {
    let mut args = std::env::args().skip(1);
    let engine = Engine::parse(&args.next().unwrap_or_else(|| "sim".to_owned()))?;
    let only = args.next().unwrap_or_default();
    let tools = Tools::of_environment();
    let (mut run, mut bad, mut other) = (0, 0, 0);
    for (name, scenario) in load_all(&PathBuf::from("tests/behaviour"))? {
        if !name.contains(&only) {
            continue;
        }
        if engine == Engine::Istiod
            && let Some(why) = &scenario.istiod
        {
            other += 1;
            println!("other {name}: {why}");
            continue;
        }
        run += 1;
        let wrong = behave::run(engine, &scenario, &tools).unwrap_or_else(|error| vec![format!("{error:#}")]);
        if wrong.is_empty() {
            println!("ok    {name}");
        } else {
            bad += 1;
            println!("WRONG {name}: {}", scenario.about);
            wrong.iter().for_each(|wrong| println!("      {wrong}"));
        }
    }
    println!("{run} scenarios, {bad} not as they should be");
    if other > 0 {
        println!("{other} more are told apart from istiod on purpose");
    }
    Ok(if bad == 0 && run > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

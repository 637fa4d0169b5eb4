use std::collections::BTreeSet;

use super::{ApplyError, Intent, apply};
use crate::Env;
use crate::redirect::args::RedirectArgs;
use crate::redirect::config::Config;
use crate::redirect::iptables::Words;
use crate::redirect::machine::Machine;
use crate::redirect::rule::Family;
use crate::redirect::rules::rules;
use crate::redirect::tools::{ToolError, Tools};

/// A kernel with rules of its own, which refuses what it is told to refuse.
#[derive(Default)]
struct Kernel {
    saved: String,
    refuses: BTreeSet<&'static str>,
    done: Vec<String>,
}

impl Kernel {
    fn answer(&mut self, what: String) -> Result<(), ToolError> {
        let refused = self.refuses.iter().any(|word| what.contains(word));
        self.done.push(what);
        if refused {
            return Err(ToolError::Failed { program: "kernel".to_owned(), said: "no".to_owned() });
        }
        Ok(())
    }

    fn did(&self, word: &str) -> bool {
        self.done.iter().any(|done| done.contains(word))
    }
}

impl Tools for Kernel {
    fn save(&mut self, family: Family) -> Result<String, ToolError> {
        Ok(if family == Family::V4 { self.saved.clone() } else { String::new() })
    }

    fn restore(&mut self, family: Family, _text: &str) -> Result<(), ToolError> {
        self.answer(format!("restore {family:?}"))
    }

    fn call(&mut self, family: Family, words: &Words) -> Result<(), ToolError> {
        self.answer(format!("{family:?} {}", words.join(" ")))
    }
}

fn run(kernel: &mut Kernel, intent: Intent) -> Result<(), ApplyError> {
    let machine = Machine::with(&["fd00::1"], "", "");
    let config = Config::new(&RedirectArgs::default(), &Env::default(), &machine).unwrap();
    apply(&config, &rules(&config), intent, kernel)
}

#[test]
fn a_refusal_of_one_family_takes_the_other_back() {
    let mut kernel = Kernel { refuses: BTreeSet::from(["restore V6"]), ..Kernel::default() };
    assert!(run(&mut kernel, Intent::Apply).is_err());
    assert!(kernel.did("V4 -t nat -D OUTPUT -j ISTIO_OUTPUT") && kernel.did("V4 -t nat -X ISTIO_OUTPUT"));
}

#[test]
fn rules_of_another_run_are_not_taken_back() {
    let saved = "*nat\n:ISTIO_OUTPUT - [0:0]\nCOMMIT\n".to_owned();
    let mut kernel = Kernel { saved, refuses: BTreeSet::from(["restore"]), ..Kernel::default() };
    assert!(matches!(run(&mut kernel, Intent::Apply), Err(ApplyError::Drift)));
    assert!(!kernel.did("restore"));
    assert!(matches!(run(&mut kernel, Intent::Force), Err(ApplyError::Tool(_))));
    assert!(!kernel.did("-D") && !kernel.did("-X"));
}

#[test]
fn rules_of_others_are_not_in_the_way() {
    let saved = "*nat\n:OUTPUT ACCEPT [0:0]\n-A OUTPUT -p tcp -j ACCEPT\nCOMMIT\n".to_owned();
    let mut kernel = Kernel { saved, ..Kernel::default() };
    run(&mut kernel, Intent::Apply).unwrap();
    assert!(kernel.did("restore V4") && kernel.did("restore V6") && !kernel.did("DROP"));
}

#[test]
fn the_barrier_opens_again_whatever_happens() {
    for refused in ["restore V4", "V6 -t filter -I OUTPUT", "nothing"] {
        let saved = "*nat\n:ISTIO_OLD - [0:0]\n-A OUTPUT -j ISTIO_OLD\nCOMMIT\n".to_owned();
        let mut kernel = Kernel { saved, refuses: BTreeSet::from([refused]), ..Kernel::default() };
        assert_eq!(run(&mut kernel, Intent::Reconcile).is_ok(), refused == "nothing");
        let last = |word: &str| kernel.done.iter().rposition(|done| done.contains(word)).unwrap();
        for chain in ["INPUT", "FORWARD", "OUTPUT"] {
            let open = last(&format!("V4 -t filter -D {chain}"));
            assert!(open > last(&format!("V4 -t filter -I {chain}")), "{refused} {chain}");
        }
    }
}

#[test]
fn cleaning_finds_what_other_settings_made() {
    let saved = "*nat\n:ISTIO_OLD - [0:0]\n-A OUTPUT -p tcp -j ISTIO_OLD\nCOMMIT\n".to_owned();
    let mut kernel = Kernel { saved, ..Kernel::default() };
    run(&mut kernel, Intent::Cleanup).unwrap();
    let position = |words: &str| kernel.done.iter().position(|done| done == words);
    let jump = position("V4 -t nat -D OUTPUT -p tcp -j ISTIO_OLD").unwrap();
    assert!(jump < position("V4 -t nat -X ISTIO_OLD").unwrap());
    assert!(!kernel.did("restore"));
}

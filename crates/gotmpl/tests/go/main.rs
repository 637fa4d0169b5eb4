//! Templates give what Go's own `text/template` gives, which is asked the same questions where there is a Go.
#![allow(clippy::unwrap_used, clippy::panic, reason = "only tests are here")]

mod cases;

use std::process::Command;

use serde_json::json;

use cases::{CASES, data};

/// Reads data and templates as JSON and answers with a list of texts. Numbers that are whole are made `int`, since ours are.
const PROGRAM: &str = r#"package main

import (
	"encoding/json"
	"math"
	"os"
	"strings"
	"text/template"
)

func whole(v any) any {
	switch v := v.(type) {
	case float64:
		if v == math.Trunc(v) {
			return int(v)
		}
	case []any:
		for i := range v {
			v[i] = whole(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = whole(v[k])
		}
	}
	return v
}

func main() {
	var in struct {
		Data  any
		Cases []string
	}
	file, _ := os.ReadFile(os.Args[1])
	if err := json.Unmarshal(file, &in); err != nil {
		panic(err)
	}
	out := []string{}
	for _, text := range in.Cases {
		var b strings.Builder
		t, err := template.New("t").Parse(text)
		if err == nil {
			err = t.Execute(&b, whole(in.Data))
		}
		if err != nil {
			b.WriteString(" error: " + err.Error())
		}
		out = append(out, b.String())
	}
	json.NewEncoder(os.Stdout).Encode(out)
}
"#;

#[allow(clippy::disallowed_methods, reason = "tests are told what the machine has by its environment")]
fn required() -> bool {
    std::env::var("PILOT_REQUIRE_ALL").is_ok_and(|value| !value.is_empty())
}

#[test]
fn go_gives_the_same() {
    if Command::new("go").arg("version").output().is_err() {
        assert!(!required(), "there is no Go on this machine");
        println!("skipped: there is no Go on this machine");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (program, input) = (directory.path().join("main.go"), directory.path().join("in.json"));
    let cases: Vec<&str> = CASES.iter().map(|(text, _)| *text).collect();
    std::fs::write(&program, PROGRAM).unwrap();
    std::fs::write(&input, json!({"Data": data(), "Cases": cases}).to_string()).unwrap();
    let output = Command::new("go").arg("run").args([&program, &input]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answers: Vec<String> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answers.len(), CASES.len());
    let pairs = CASES.iter().zip(&answers);
    let wrong: Vec<_> = pairs.filter(|((_, wanted), answer)| answer.as_str() != *wanted).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

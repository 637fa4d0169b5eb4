use serde_json::json;

use crate::{Functions, Limits, Template, Value};

fn render(text: &str, data: serde_json::Value) -> Result<String, String> {
    let functions = Functions::with_sprig();
    let template = Template::parse("t", text, &functions).map_err(|error| error.to_string())?;
    template.render(&Value::from(data), &functions, Limits::default()).map_err(|error| error.to_string())
}

#[test]
fn mistakes_are_told_with_line_and_column() {
    for (text, message) in [
        ("a\n  {{ .x ", "t:2:3: unclosed action"),
        ("{{ if .x }}", "t:1:1: {{if}} without {{end}}"),
        ("{{ end }}", "t:1:1: unexpected {{end}}"),
        ("{{ else }}", "t:1:1: unexpected {{else}}"),
        ("{{ if 1 }}{{ else }}{{ else }}{{ end }}", "t:1:21: {{else}} after {{else}}"),
        ("\n\n {{ nope 1 }}", "t:3:5: function \"nope\" not defined"),
        ("{{ $x }}", "t:1:4: undefined variable \"$x\""),
        ("{{ with $x := 1 }}{{ end }}{{ $x }}", "t:1:31: undefined variable \"$x\""),
        ("{{ define \"d\" }}{{ $y }}{{ end }}{{ $y := 1 }}", "t:1:20: undefined variable \"$y\""),
        ("{{ \"abc }}", "t:1:4: unterminated quoted string"),
        ("{{ `abc }}", "t:1:4: unterminated raw quoted string"),
        ("{{ 'ab' }}", "t:1:4: a character constant holds one character"),
        ("{{ 1x }}", "t:1:4: \"1x\" is not a number"),
        ("{{ /* }}", "t:1:1: unclosed comment"),
        ("{{/* a */ b}}", "t:1:3: comment ends before closing delimiter"),
        ("{{ ; }}", "t:1:4: unexpected ';' in an action"),
        ("{{ }}", "t:1:3: missing value for a command"),
        ("{{ 1 | 2 }}", "t:1:8: 2 cannot be given anything by a pipe"),
        ("{{ (1 }}", "t:1:6: unexpected }}, expected )"),
        ("{{ 1.x }}", "t:1:4: \"1.x\" is not a number"),
        ("{{ \"a\".x }}", "t:1:7: unexpected .x after a term that has no fields"),
        ("{{ template x }}", "t:1:13: template needs a name in quotes, not \"x\""),
        ("{{ break }}", "t:1:1: {{break}} outside {{range}}"),
        (
            "{{ range 2 }}{{ define \"d\" }}{{ break }}{{ end }}{{ end }}",
            "t:1:30: {{break}} outside {{range}}",
        ),
        ("{{ $a, $b := 1 }}", "t:1:4: undefined variable \"$a\""),
        ("{{ print.x\"a\" }}", "t:1:11: unexpected a without a space before it"),
    ] {
        assert_eq!(render(text, json!({})).unwrap_err(), message, "{text}");
    }
}

#[test]
fn what_goes_wrong_while_it_runs_is_told_too() {
    let data = || json!({"s": "text", "n": null, "l": [1], "m": {"a": 1}});
    for (text, message) in [
        ("{{ .s.x }}", "t:1:4: can't evaluate field x in type string"),
        ("{{ .n.x }}", "t:1:4: nil has no field x"),
        ("{{ .s 1 }}", "t:1:4: can't give arguments to s: it is not a function"),
        ("{{ 1 | .s }}", "t:1:8: can't give arguments to s: it is not a function"),
        ("a\n{{ template \"none\" }}", "t:2:1: template \"none\" not defined"),
        ("{{ index .l 1 }}", "t:1:4: index: index out of range: 1"),
        ("{{ index .l -1 }}", "t:1:4: index: index out of range: -1"),
        ("{{ index .m 1 }}", "t:1:4: index: a key is a string, not int"),
        ("{{ index .n 1 }}", "t:1:4: index: of untyped nil"),
        ("{{ len 3 }}", "t:1:4: len: int has no length"),
        ("{{ lt 1 \"a\" }}", "t:1:4: lt: incompatible types for comparison: int and string"),
        ("{{ eq .l .l }}", "t:1:4: eq: non-comparable type list"),
        ("{{ range .s }}{{ end }}", "t:1:10: range can't iterate over text of type string"),
        ("{{ not }}", "t:1:4: not: wants 1 arguments and got 0"),
        ("{{ and }}", "t:1:4: and: wants at least one argument"),
        ("{{ printf 1 }}", "t:1:4: printf: wants a format and got int"),
        ("{{ printf \"%99999d\" 1 }}", "t:1:4: printf: a width of 99999 is too much"),
        ("{{ slice .s 3 1 }}", "t:1:4: slice: invalid bounds: 3 to 1"),
        ("{{ fail \"no\" }}", "t:1:4: fail: no"),
    ] {
        assert_eq!(render(text, data()).unwrap_err(), message, "{text}");
    }
}

#[test]
fn a_template_cannot_take_everything() {
    let functions = Functions::go();
    let run = |text: &str| {
        let limits = Limits { output: 1_000, depth: 10, steps: 10_000 };
        let template = Template::parse("t", text, &functions).map_err(|error| error.to_string())?;
        template.render(&Value::Nil, &functions, limits).map_err(|error| error.to_string())
    };
    let error = run("{{ range 1000000000000 }}{{ end }}").unwrap_err();
    assert!(error.contains("too many steps"), "{error}");
    let error = run("{{ range 200 }}0123456789{{ end }}").unwrap_err();
    assert!(error.contains("more than 1000 bytes"), "{error}");
    let error = run(r#"{{ define "a" }}{{ template "a" }}{{ end }}{{ template "a" }}"#).unwrap_err();
    assert!(error.contains("more than 10 deep"), "{error}");
    let error = run(&format!("{{{{ {}1{} }}}}", "(".repeat(5_000), ")".repeat(5_000))).unwrap_err();
    assert!(error.contains("nested more than"), "{error}");
    let error = run(&"{{ if 1 }}".repeat(5_000)).unwrap_err();
    assert!(error.contains("nested more than"), "{error}");
    let chain = format!("{{{{ if 0 }}}}{}{{{{ end }}}}", "{{ else if 0 }}".repeat(5_000));
    assert!(run(&chain).unwrap_err().contains("nested more than"));
}

#[test]
fn functions_can_be_added() {
    let functions = Functions::go().with("twice", |arguments| match arguments {
        [Value::Int(number)] => Ok(Value::Int(number * 2)),
        _ => Err("wants a number".to_owned()),
    });
    let template = Template::parse("t", "{{ 21 | twice }}", &functions).unwrap();
    assert_eq!(template.render(&Value::Nil, &functions, Limits::default()).unwrap(), "42");
}

#[test]
fn sprigs_functions_are_there() {
    let data = || json!({"e": "", "s": "a-b", "l": ["x", "y"], "m": {"k": 1}});
    for (text, wanted) in [
        (r#"{{ .e | default "d" }} {{ .s | default "d" }} {{ .none | default 3 }}"#, "d a-b 3"),
        (r#"{{ quote .s 1 .none }} {{ squote .s }}"#, r#""a-b" "1" 'a-b'"#),
        (r#"{{ toJson .m }} {{ toJson .l }} {{ (fromJson "{\"a\":[1]}").a }}"#, r#"{"k":1} ["x","y"] [1]"#),
        (
            r#"{{ upper .s }} {{ trimPrefix "a" .s }} {{ replace "-" "+" .s }} {{ hasPrefix "a" .s }}"#,
            "A-B -b a+b true",
        ),
        (r#"{{ join "," .l }} {{ splitList "-" .s | len }} {{ has "x" .l }} {{ first .l }}"#, "x,y 2 true x"),
        (r#"{{ (dict "a" 1 "b" 2).b }} {{ hasKey .m "k" }} {{ get .m "z" }} {{ keys .m }}"#, "2 true  [k]"),
        ("{{ \"a\\nb\" | nindent 2 }}", "\n  a\n  b"),
        (
            r#"{{ add 1 2 3 }} {{ sub 5 2 }} {{ int "7" }} {{ ternary "y" "n" true }} {{ empty .e }}"#,
            "6 3 7 y true",
        ),
        (r#"{{ coalesce "" 0 "z" }} {{ toString 1 | len }}"#, "z 1"),
    ] {
        assert_eq!(render(text, data()).as_deref(), Ok(wanted), "{text}");
    }
}

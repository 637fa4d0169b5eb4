//! What a template gives. Go itself is asked about each of them too.

use pilot_gotmpl::{Functions, Limits, Template, Value};
use serde_json::{Value as Json, json};

fn render(text: &str) -> Result<String, String> {
    let functions = Functions::go();
    let template = Template::parse("t", text, &functions).map_err(|error| error.to_string())?;
    template.render(&Value::from(data()), &functions, Limits::default()).map_err(|error| error.to_string())
}

pub(super) fn data() -> Json {
    json!({
        "name": "pilot", "empty": "", "zero": 0, "n": 3, "yes": true, "no": false, "null": null,
        "list": ["a", "b", "c"], "none": [], "map": {"x": 1, "b": "two", "a": {"deep": "d"}},
        "html": "<a href='x'>&\"</a>=", "words": "a b&c/ü",
    })
}

pub(super) const CASES: &[(&str, &str)] = &[
    ("plain", "plain"),
    ("{{ .name }}-{{.name}}", "pilot-pilot"),
    ("a {{- .name -}} b", "apilotb"),
    ("a\n\t{{- \"x\" }} \n {{ 3 -}}\n b", "ax \n 3b"),
    ("a {{/* gone */}} b {{- /* trimmed */ -}} c", "a  bc"),
    ("{{ .map.a.deep }} {{ .map.q }} {{ .map.q.r }} {{ .null }}", "d <no value> <no value> <no value>"),
    ("{{ .map }} {{ .list }} {{ .yes }} {{ .zero }}", "map[a:map[deep:d] b:two x:1] [a b c] true 0"),
    ("{{ if .name }}y{{ else }}n{{ end }}{{ if .empty }}y{{ else }}n{{ end }}", "yn"),
    ("{{ if .no }}1{{ else if .zero }}2{{ else if .yes }}3{{ else }}4{{ end }}", "3"),
    ("{{ with .map.a }}{{ .deep }}{{ $.name }}{{ else }}n{{ end }}", "dpilot"),
    ("{{ with .empty }}y{{ else with .name }}{{ . }}{{ else }}n{{ end }}", "pilot"),
    ("{{ range .list }}[{{ . }}]{{ end }}", "[a][b][c]"),
    ("{{ range $i, $e := .list }}{{ $i }}={{ $e }},{{ end }}", "0=a,1=b,2=c,"),
    ("{{ range $e := .list }}{{ $e }}{{ end }}{{ range .none }}x{{ else }}none{{ end }}", "abcnone"),
    ("{{ range $k, $v := .map }}{{ $k }}:{{ $v }};{{ end }}", "a:map[deep:d];b:two;x:1;"),
    ("{{ range $i := 3 }}{{ $i }}{{ end }}", "012"),
    ("{{ range .list }}{{ if eq . \"b\" }}{{ continue }}{{ end }}{{ . }}{{ end }}", "ac"),
    ("{{ range .list }}{{ if eq . \"b\" }}{{ break }}{{ end }}{{ . }}{{ end }}", "a"),
    ("{{ range .q }}x{{ else }}no{{ end }}", "no"),
    ("{{ $x := 1 }}{{ if true }}{{ $x = 2 }}{{ $x := 5 }}{{ $x }}{{ end }}{{ $x }}", "52"),
    ("{{ $x := \"\" }}{{ range .list }}{{ $x = . }}{{ end }}{{ $x }}", "c"),
    (
        "{{ define \"d\" }}<{{ . }}>{{ end }}{{ template \"d\" .name }}{{ template \"d\" }}",
        "<pilot><<no value>>",
    ),
    ("{{ block \"b\" .list }}{{ len . }}{{ end }}", "3"),
    ("{{ template \"later\" 1 }}{{ define \"later\" }}{{ $ }}{{ end }}", "1"),
    ("{{ .name | printf \"%s-%s\" \"x\" | len }}", "7"),
    ("{{ (index .list 1) }} {{ index .map \"a\" \"deep\" }} {{ (index .map \"a\").deep }}", "b d d"),
    ("{{ len .name }} {{ len .list }} {{ len .map }}", "5 3 3"),
    ("{{ slice .name 1 3 }} {{ slice .list 1 }} {{ slice .name }}", "il [b c] pilot"),
    ("{{ and 1 0 2 }} {{ and 1 2 }} {{ or 0 \"\" \"x\" }} {{ or 0 \"\" }}|{{ not .no }}", "0 2 x |true"),
    ("{{ or .name (index .none 5) }} {{ and .no (index .none 5) }}", "pilot false"),
    ("{{ eq .name \"pilot\" }} {{ eq 1 2 3 1 }} {{ ne 1 2 }} {{ eq .q nil }}", "true true true true"),
    (
        "{{ lt 1 2 }} {{ le 2 2 }} {{ gt \"b\" \"a\" }} {{ ge 1 2 }} {{ lt 1.5 2.5 }}",
        "true true true false true",
    ),
    ("{{ print 1 2 \"a\" \"b\" 3 }} {{ print \"a\" 1 2 }} {{ println \"x\" 1 }}", "1 2ab3 a1 2 x 1\n"),
    (
        "{{ printf \"%d %5d|%-5d|%05d %+d %x %X %o %b %c %q %U\" 7 7 7 7 7 255 255 8 5 65 65 65 }}",
        "7     7|7    |00007 +7 ff FF 10 101 A 'A' U+0041",
    ),
    (
        "{{ printf \"%s|%10s|%-10s|%q|%.2s|%x|%v\" \"hi\" \"hi\" \"hi\" \"h\\\"i\\n\" \"hello\" \"hi\" \"hi\" }}",
        "hi|        hi|hi        |\"h\\\"i\\n\"|he|6869|hi",
    ),
    (
        "{{ printf \"%f %.2f %e %g %v %8.3f|\" 1.5 1.5 1.5 1.5 1.5 3.14159 }}",
        "1.500000 1.50 1.500000e+00 1.5 1.5    3.142|",
    ),
    (
        "{{ printf \"%t %v %v %v %%\" true .list .map nil }}",
        "true [a b c] map[a:map[deep:d] b:two x:1] <nil> %",
    ),
    (
        "{{ printf \"%d\" \"x\" }} {{ printf \"%d\" }} {{ printf \"a\" 1 \"b\" }} {{ printf \"%\" }}",
        "%!d(string=x) %!d(MISSING) a%!(EXTRA int=1, string=b) %!(NOVERB)",
    ),
    ("{{ printf \"%*d|%-*d|\" 5 1 5 1 }}", "    1|1    |"),
    ("{{ html .html }}", "&lt;a href=&#39;x&#39;&gt;&amp;&#34;&lt;/a&gt;="),
    (
        "{{ js .html }} {{ js \"\\\\d\\t\" }}",
        "\\u003Ca href\\u003D\\'x\\'\\u003E\\u0026\\\"\\u003C/a\\u003E\\u003D \\\\d\\u0009",
    ),
    ("{{ urlquery .words }}", "a+b%26c%2F%C3%BC"),
    (
        "{{ 0x1F }} {{ 0b11 }} {{ 0o17 }} {{ 1_000 }} {{ 1.5e3 }} {{ 'a' }} {{ -3 }} {{ 1e100 }} {{ 0.00001 }}",
        "31 3 15 1000 1500 97 -3 1e+100 1e-05",
    ),
    ("{{ \"tab\\tquote\\\"x41=\\x41 \\u00e9\" }} {{ `raw \\n` }}", "tab\tquote\"x41=A é raw \\n"),
    ("{{ true }} {{ false }} {{ .yes | not }}", "true false false"),
    ("{{ $ | len }} {{ $.name }} {{ with $y := .map }}{{ $y.b }}{{ end }}", "12 pilot two"),
    ("{{ if and .yes (or .no (eq .n 3)) }}ok{{ end }}", "ok"),
    ("{{ $a := .name }}{{ $b := $a | len }}{{ $a }}{{ $b }}", "pilot5"),
    ("{{ if $v := .name }}{{ $v }}{{ else }}{{ $v }}{{ end }}", "pilot"),
    ("{{ range $i, $_ := .list }}{{ if $i }}, {{ end }}{{ . }}{{ end }}", "a, b, c"),
    ("{{ if not (eq .name \"x\") -}} \n yes \n {{- end }}", "yes"),
    (
        "{{define \"a\"}}{{range .}}{{template \"b\" .}}{{end}}{{end}}{{define \"b\"}}({{.}}){{end}}{{template \"a\" .list}}",
        "(a)(b)(c)",
    ),
];

#[test]
fn templates_give_what_they_should() {
    let given = CASES.iter().map(|(text, wanted)| (text, render(text), wanted));
    let wrong: Vec<_> = given.filter(|(_, given, wanted)| given.as_deref() != Ok(**wanted)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

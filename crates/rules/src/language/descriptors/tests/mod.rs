//! Which limit a descriptor matches: the rules of the reference service one by one.

mod diff;
mod files;
mod random;

use super::tree::{DescriptorLookup, Descriptors};
use crate::envoy::DescriptorEntry;
use crate::language::{ParseOptions, RuleSet, SourceFile, parse_with_options};
use tidegate_core::rule_options::Capabilities;

fn set(text: &str) -> RuleSet {
    read(&[text], false).unwrap_or_else(|errors| panic!("{errors}"))
}

fn read(texts: &[&str], merge_domains: bool) -> Result<RuleSet, String> {
    let options = ParseOptions { merge_domains, ..Capabilities::MEMORY.into() };
    let names = ["a.yaml", "b.yaml", "c.yaml"];
    let named = names.iter().zip(texts);
    let files: Vec<_> = named.map(|(name, text)| SourceFile { name, text }).collect();
    parse_with_options(&files, options).map_err(|errors| errors.to_string())
}

/// A tree, one node per line, children indented: `key`, `key=value`, and `!` for a limit.
fn tree(lines: &str) -> String {
    let mut text = "domain: d\ndescriptors:\n".to_owned();
    for line in lines.lines().filter(|line| !line.trim().is_empty()) {
        let depth = line.len() - line.trim_start().len();
        let indent = " ".repeat(2 * depth);
        let mut words = line.split_whitespace();
        let entry = words.next().unwrap();
        let (key, value) = entry.split_once('=').unwrap_or((entry, ""));
        text.push_str(&format!("{indent}- key: '{key}'\n{indent}  value: '{value}'\n"));
        for word in words {
            let field = match word {
                "!" => "rate_limit: { unit: minute, requests_per_unit: 1 }",
                "shadow" => "shadow_mode: true",
                "named" => "rate_limit: { unit: minute, requests_per_unit: 1, name: n }",
                "other" => "rate_limit: { unit: minute, requests_per_unit: 1, name: o, replaces: [{ name: n }] }",
                "frees-other" => "rate_limit: { unlimited: true, replaces: [{ name: o }] }",
                "frees" => "rate_limit: { unlimited: true, replaces: [{ name: n }] }",
                "shares" => "share_threshold: true",
                "shown" => "value_to_metric: true",
                "detailed" => "detailed_metric: true",
                "metadata" => "metadata: { a: b }",
                "..." => "descriptors:",
                word => panic!("{word}?"),
            };
            text.push_str(&format!("{indent}  {field}\n"));
        }
    }
    text
}

fn entries(words: &str) -> Vec<DescriptorEntry<'_>> {
    let words = words.split_whitespace();
    let entries = words.map(|word| word.split_once('=').unwrap());
    entries.map(|(key, value)| (key, value.into())).collect()
}

fn lookup<'s>(set: &'s RuleSet, words: &str) -> DescriptorLookup<'s> {
    let domain = set.descriptors.domain("d").unwrap();
    domain.find(&entries(words), &mut String::new())
}

/// The path of the limit that the entries match; otherwise `none` or `exempt`.
#[track_caller]
fn check(lines: &str, cases: &[(&str, &str)]) {
    let set = set(&tree(lines));
    for (words, want) in cases {
        let actual = match lookup(&set, words) {
            DescriptorLookup::NotFound => "none".to_owned(),
            DescriptorLookup::Exempt => "exempt".to_owned(),
            DescriptorLookup::Limit(hit) => hit.limit.path.to_string(),
        };
        assert_eq!(actual, *want, "{words}");
    }
}

#[test]
fn an_exact_value_comes_before_patterns_and_patterns_before_the_bare_key() {
    check(
        "
k !
k=a* !
k=ab !
k=*b !
",
        &[
            ("k=ab", "d.k_ab"),
            ("k=ac", "d.k_a*"),
            ("k=a", "d.k_a*"),
            ("k=cb", "d.k_*b"),
            ("k=aab", "d.k_a*"),
            ("k=c", "d.k"),
            ("k=", "d.k"),
            ("l=ab", "none"),
            ("", "none"),
        ],
    );
}

#[test]
fn the_first_pattern_of_the_file_wins() {
    check("k=*b !\nk=a* !\n", &[("k=ab", "d.k_*b"), ("k=ac", "d.k_a*")]);
    check("k=a* !\nk=*b !\n", &[("k=ab", "d.k_a*"), ("k=cb", "d.k_*b")]);
}

#[test]
fn a_star_is_any_text_and_both_ends_are_fixed() {
    check(
        "k=a*b*c !\n",
        &[
            ("k=abc", "d.k_a*b*c"),
            ("k=axxbyyc", "d.k_a*b*c"),
            ("k=abbc", "d.k_a*b*c"),
            ("k=acb", "none"),
            ("k=ac", "none"),
            ("k=xabc", "none"),
            ("k=abcx", "none"),
        ],
    );
    check("k=ab*ba !\n", &[("k=aba", "none"), ("k=abba", "d.k_ab*ba")]);
    check("k=a**b !\n", &[("k=ab", "d.k_a**b"), ("k=a**b", "d.k_a**b")]);
}

#[test]
fn lookup_does_not_backtrack() {
    check(
        "
k=a ...
 x !
k=a* ...
 y !
k ...
 y !
",
        &[
            ("k=a x=1", "d.k_a.x"),
            ("k=a y=1", "none"),
            ("k=ab y=1", "d.k_a*.y"),
            ("k=ab x=1", "none"),
            ("k=b y=1", "d.k.y"),
        ],
    );
}

#[test]
fn only_the_node_of_the_last_entry_counts() {
    check(
        "
k ! ...
 l ...
  m !
 exempt
",
        &[
            ("k=1", "d.k"),
            ("k=1 l=1", "none"),
            ("k=1 l=1 m=1", "d.k.l.m"),
            ("k=1 l=1 m=1 n=1", "none"),
            ("k=1 exempt=1", "exempt"),
            ("k=1 exempt=1 n=1", "none"),
            ("l=1", "none"),
        ],
    );
}

#[test]
fn key_and_value_are_one_text() {
    check(
        "a_b !\nx*=1 !\n*z !\n",
        &[
            ("a=b", "d.a_b"),
            ("a_b=1", "d.a_b"),
            ("xy=1", "d.x*_1"),
            ("x=y_1", "d.x*_1"),
            ("x=2", "none"),
            ("some=thingz", "d.*z"),
        ],
    );
}

#[test]
fn a_pattern_may_share_one_counter_at_any_level() {
    let set = set(&tree(
        "
k=a* shares ...
 l !
 m=x*y ! shares
k=b* ! shares
k=c* !
*z ! shares
",
    ));
    let shared = |words: &str| match lookup(&set, words) {
        DescriptorLookup::Limit(hit) => hit.shared_patterns.to_vec(),
        other => panic!("{other:?}"),
    };
    assert_eq!(shared("k=ab l=1"), [(0, "a*")]);
    assert_eq!(shared("k=ab m=xxy"), [(0, "a*"), (1, "x*y")]);
    assert_eq!(shared("k=bb"), [(0, "b*")]);
    assert_eq!(shared("k=c1"), []);
    assert_eq!(shared("k=b*"), [], "the exact value reads the same");
    assert_eq!(shared("q=z"), [(0, "*z")]);
}

#[test]
fn a_limit_is_counted_under_its_path_unless_a_node_wants_values() {
    let set = set(&tree(
        "
bare !
value=v !
pattern=p* !
shown shown !
shown=p* shown !
shares=p* shown shares !
detailed detailed !
upper shown ...
 lower !
mixed=p* shares ...
 end detailed !
x* !
",
    ));
    let under = |words: &str| match lookup(&set, words) {
        DescriptorLookup::Limit(hit) => match hit.stats_key {
            Some(text) => text,
            None => format!("= {}", hit.limit.path),
        },
        other => panic!("{other:?}"),
    };
    for (words, want) in [
        ("bare=1", "= d.bare"),
        ("value=v", "= d.value_v"),
        ("pattern=p1", "= d.pattern_p*"),
        ("shown=1", "d.shown_1"),
        ("shown=", "= d.shown"),
        ("shown=p1", "d.shown_p1"),
        ("shares=p1", "= d.shares_p*"),
        ("detailed=1", "d.detailed_1"),
        ("detailed=", "d.detailed_"),
        ("upper=1 lower=2", "d.upper_1.lower"),
        ("mixed=p1 end=2", "d.mixed_p*.end_2"),
        ("mixed=p1 end=", "d.mixed_p*.end"),
        ("xy=1", "d.xy_x*"),
    ] {
        assert_eq!(under(words), want, "{words}");
    }
}

/// The reference service creates a new limit when it counts it under values, and drops the metadata.
#[test]
fn a_limit_counted_under_values_loses_its_metadata() {
    let set = set(&tree(
        "
plain ! metadata
shown ! metadata shown
leaf ! metadata detailed
inner ! metadata detailed ...
 below !
",
    ));
    let has_metadata = |words: &str| match lookup(&set, words) {
        DescriptorLookup::Limit(hit) => hit.metadata.is_some(),
        other => panic!("{other:?}"),
    };
    assert!(has_metadata("plain=1"));
    assert!(!has_metadata("shown=1"));
    assert!(has_metadata("shown="));
    assert!(!has_metadata("leaf=1"));
    assert!(has_metadata("inner=1"));
}

#[test]
fn a_domain_is_found_by_its_whole_name() {
    let descriptors = Descriptors::new(&Capabilities::MEMORY.into());
    assert!(descriptors.domain("").is_none());
    let set = set(&tree("k !\n"));
    assert!(set.descriptors.domain("d").is_some());
    assert!(set.descriptors.domain("D").is_none());
    assert!(set.descriptors.domain("d.k").is_none());
}

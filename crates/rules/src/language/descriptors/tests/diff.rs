//! Limits of a tree that no longer hold for some descriptors in the next tree.

use super::{set, tree};
use crate::language::lifted_descriptor_limits;

#[track_caller]
fn check(before: &str, after: &str, lifted: &[&str]) {
    let (before_set, after_set) = (set(&tree(before)), set(&tree(after)));
    let found = lifted_descriptor_limits(&before_set, &after_set);
    assert!(!found.is_truncated);
    let mut found: Vec<_> = found.names.into_iter().collect();
    found.sort_unstable();
    assert_eq!(found, lifted, "from{before}to{after}");
}

#[test]
fn values_and_patterns_without_a_limit_lift_the_limit_of_the_bare_key() {
    for hiding in ["k=a", "k=a*", "k=a ! shadow", "k=a ...\n  l !", "k=a frees"] {
        check("\nk !\n", &format!("\nk !\n{hiding}\n"), &["d.k"]);
    }
    check("\nk=a* !\n", "\nk=a* !\nk=ab\n", &["d.k_a*"]);
    check("\nk=a* !\n", "\nk=*\nk=a* !\n", &["d.k_a*"]);
}

#[test]
fn values_without_a_limit_lift_the_limits_below_the_bare_key() {
    check("\nk ...\n  l !\n", "\nk ...\n  l !\nk=a\n", &["d.k.l"]);
    check("\nk ...\n  l !\n", "\nk ...\n  l !\n  l=b\n", &["d.k.l"]);
}

#[test]
fn an_unlimited_descriptor_lifts_the_limits_it_replaces() {
    check("\nk named\nl !\n", "\nk named\nl !\nm frees\n", &["d.k"]);
    check("\nk named\nm frees\n", "\nk named\nm frees\n", &[]);
    check("\nk named\nm frees\n", "\nk named\nl frees\nm frees\n", &["d.k"]);
}

/// The replacing limit is replaced in turn.
#[test]
fn transitive_and_shadow_replacements_lift_limits() {
    check("\nk named\n", "\nk named\nl other\nm frees-other\n", &["d.k"]);
    check("\nk named\n", "\nk named\nl other\n", &[]);
    check("\nk named\n", "\nk named\nl other shadow\n", &["d.k"]);
}

#[test]
fn limits_that_are_gone_are_lifted() {
    check("\nk !\nl !\n", "\nl !\n", &["d.k"]);
}

#[test]
fn descriptors_with_another_limit_or_without_one_before_are_not_reported() {
    for (before, after) in [
        ("\nk !\n", "\nk !\nk=a !\nk=b* !\n"),
        ("\nk !\nk=a !\n", "\nk !\n"),
        ("\nk !\nk=a\n", "\nk !\nk=a\n"),
        ("\nk !\n", "\nk !\nl\nl=a\nkk=a\n"),
        ("\nk ! shadow\n", "\nk ! shadow\nk=a\n"),
        ("\nk ! ...\n  l !\n", "\nk ! ...\n  l !\n  m\n"),
    ] {
        check(before, after, &[]);
    }
}

#[test]
fn trees_that_are_too_large_are_compared_only_in_part() {
    let many = |count: usize| {
        let lines = (0..count).map(|i| format!("k=a{i}* !\n"));
        lines.collect::<String>()
    };
    for (count, is_truncated) in [(1_000, false), (1_500, true)] {
        let set = set(&tree(&many(count)));
        assert_eq!(lifted_descriptor_limits(&set, &set).is_truncated, is_truncated, "{count}");
    }
}

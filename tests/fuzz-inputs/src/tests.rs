use super::*;

fn target<'c>(good: &'c [&'c [u8]], numbers: NumberEncoding) -> FuzzTarget<'c> {
    FuzzTarget {
        parser: "nothing",
        seed: 7,
        inputs: 20_000,
        corpus: good,
        tokens: &[b"[", b"]", b"\xff"],
        delimiters: &[(b"[", b"]")],
        numbers,
        max_len: 4_000,
    }
}

#[test]
fn the_same_number_gives_the_same_input_and_other_numbers_differ() {
    for numbers in [NumberEncoding::Digits, NumberEncoding::Varint] {
        let target = target(&[b"[12, 345]", b"", b"abc 7"], numbers);
        let inputs: Vec<_> = (0..1_000).map(|n| target.input(n)).collect();
        let again: Vec<_> = (0..1_000).map(|n| target.input(n)).collect();
        assert_eq!(inputs, again);
        let different: std::collections::HashSet<_> = inputs.iter().collect();
        assert!(different.len() > 500, "{}", different.len());
        assert!(inputs.iter().all(|input| input.len() <= target.max_len));
    }
}

/// The effect of each mutation shows.
#[test]
fn inputs_are_deep_long_mixed_and_have_edge_numbers() {
    let target = target(&[b"[12, 345]", b"key: value"], NumberEncoding::Digits);
    let inputs: Vec<_> = (0..20_000).map(|n| target.input(n)).collect();
    let seen = |is: &dyn Fn(&[u8]) -> bool| inputs.iter().filter(|input| is(input)).count();
    let holds = |part: &'static [u8]| move |input: &[u8]| input.windows(part.len()).any(|window| window == part);
    assert!(seen(&holds(b"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[")) > 20);
    assert!(seen(&holds(b"18446744073709551616")) > 20);
    assert!(seen(&holds(b"[345, 12")) > 20, "words are swapped");
    assert!(seen(&holds(b"[12value")) + seen(&holds(b"[12 value")) > 5);
    assert!(seen(&|input| input.len() > 1_000) > 20);
    assert!(seen(&|input| input.is_empty()) > 20);
}

/// A busy machine once failed a parser: it was run five times and had to wait each time.
#[test]
fn a_parser_that_only_waits_passes() {
    let mut waits = 3;
    let accepts = |_: &[u8]| {
        if waits > 0 {
            waits -= 1;
            std::thread::sleep(4 * CHEAP_TIME);
        }
        true
    };
    let outcome = target(&[b"x"], NumberEncoding::Digits).run(accepts, |_| {});
    assert!(outcome.measured >= 1 && outcome.max_work < 1.0, "{outcome:?}");
}

#[test]
#[should_panic(expected = "work units")]
fn a_parser_that_works_too_much_fails() {
    let quadratic = |_: &[u8]| {
        let mut sum = 0_u64;
        for i in 0..10_000_u64 {
            sum = (0..10_000).fold(sum, |sum, j| std::hint::black_box(sum ^ (i * j)));
        }
        sum != 1
    };
    target(&[b"x"], NumberEncoding::Digits).run(quadratic, |_| {});
}

#[test]
#[should_panic(expected = "too few accepted")]
fn a_parser_that_accepts_nothing_fails() {
    target(&[b"x"], NumberEncoding::Digits).run(|_| false, |_| {});
}

#[test]
#[should_panic(expected = "on purpose")]
fn invariants_are_checked_on_accepted_input() {
    target(&[b"x"], NumberEncoding::Digits).run(|input| input == b"x", |_| panic!("on purpose"));
}

use super::*;

fn attack<'c>(good: &'c [&'c [u8]], numbers: Numbers) -> Attack<'c> {
    Attack {
        parser: "nothing",
        seed: 7,
        inputs: 20_000,
        good,
        tokens: &[b"[", b"]", b"\xff"],
        nests: &[(b"[", b"]")],
        numbers,
        longest: 4_000,
    }
}

#[test]
fn the_same_number_gives_the_same_input_and_another_another() {
    for numbers in [Numbers::Digits, Numbers::Bytes] {
        let attack = attack(&[b"[12, 345]", b"", b"abc 7"], numbers);
        let inputs: Vec<_> = (0..1_000).map(|n| attack.input(n)).collect();
        let again: Vec<_> = (0..1_000).map(|n| attack.input(n)).collect();
        assert_eq!(inputs, again);
        let different: std::collections::HashSet<_> = inputs.iter().collect();
        assert!(different.len() > 500, "{}", different.len());
        assert!(inputs.iter().all(|input| input.len() <= attack.longest));
    }
}

/// What each mutation is there for is seen.
#[test]
fn inputs_are_deep_long_at_the_edge_and_mixed() {
    let attack = attack(&[b"[12, 345]", b"key: value"], Numbers::Digits);
    let inputs: Vec<_> = (0..20_000).map(|n| attack.input(n)).collect();
    let seen = |is: &dyn Fn(&[u8]) -> bool| inputs.iter().filter(|input| is(input)).count();
    let holds = |part: &'static [u8]| {
        move |input: &[u8]| input.windows(part.len()).any(|window| window == part)
    };
    assert!(seen(&holds(b"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[")) > 20);
    assert!(seen(&holds(b"18446744073709551616")) > 20);
    assert!(seen(&holds(b"[345, 12")) > 20, "words are swapped");
    assert!(seen(&holds(b"[12value")) + seen(&holds(b"[12 value")) > 5);
    assert!(seen(&|input| input.len() > 1_000) > 20);
    assert!(seen(&|input| input.is_empty()) > 20);
}

#[test]
fn only_what_is_slow_every_time_is_slow() {
    let mut left = TRIES - 1;
    let stalls = |left: &mut u32| {
        if *left > 0 {
            *left -= 1;
            std::thread::sleep(TOO_SLOW);
        }
        true
    };
    let (accepted, took) = timed(&mut |_| stalls(&mut left), b"");
    assert!(accepted && took <= TOO_SLOW);
    left = TRIES;
    let (_, took) = timed(&mut |_| stalls(&mut left), b"");
    assert!(took > TOO_SLOW);
}

#[test]
#[should_panic(expected = "too wild")]
fn a_parser_that_accepts_nothing_tells_nothing() {
    attack(&[b"x"], Numbers::Digits).run(|_| false, |_| {});
}

#[test]
#[should_panic(expected = "on purpose")]
fn what_must_hold_is_asked_of_what_is_accepted() {
    attack(&[b"x"], Numbers::Digits).run(|input| input == b"x", |_| panic!("on purpose"));
}

//! Stats keys: the names under which the reference service counts the outcomes of descriptors.

use std::borrow::Cow;

use crate::envoy::MAX_STATS_BYTES;

/// A domain and entries as `domain.key_value.key`, cut to [`MAX_STATS_BYTES`].
pub(crate) fn stats_key<'e>(domain: &str, entries: impl Iterator<Item = (&'e str, Option<&'e str>)>) -> String {
    let mut text = domain.to_owned();
    for (key, value) in entries {
        text.push('.');
        text.push_str(key);
        if let Some(value) = value {
            text.extend(["_", value]);
        }
        if text.len() > MAX_STATS_BYTES {
            break;
        }
    }
    let mut end = text.len().min(MAX_STATS_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

/// A name in the form that metrics servers accept: `:` and `|` become `_`, and so do the dots of an IPv4 address,
/// which would read as levels.
pub fn stat_name(name: &str) -> Cow<'_, str> {
    let odd = |c: char| matches!(c, ':' | '|');
    let plain: Cow<'_, str> = if name.contains(odd) { name.replace(odd, "_").into() } else { name.into() };
    let mut out = String::new();
    let (mut rest, mut from) = (&*plain, 0);
    while let Some(address) = first_address(rest) {
        out.push_str(&rest[..address.start]);
        out.push_str(&rest[address.clone()].replace('.', "_"));
        from += address.end;
        rest = &rest[address.end..];
    }
    if from == 0 {
        return plain;
    }
    out.push_str(rest);
    out.into()
}

/// The range of the first four groups of one to three digits with dots between them.
fn first_address(text: &str) -> Option<std::ops::Range<usize>> {
    let bytes = text.as_bytes();
    (0..bytes.len()).find_map(|start| Some(start..address_at(bytes, start)?))
}

/// The end of an address that begins at `start`.
fn address_at(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    for group in 0..4 {
        if group > 0 {
            at = (bytes.get(at) == Some(&b'.')).then_some(at + 1)?;
        }
        let digits = bytes[at..].iter().take(3);
        let digits = digits.take_while(|byte| byte.is_ascii_digit()).count();
        at = (digits > 0).then_some(at + digits)?;
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, want: &str) {
        assert_eq!(stat_name(name), want);
    }

    #[test]
    fn addresses_and_marks_are_written_with_underscores() {
        check("d.key_a", "d.key_a");
        check("d.a:b|c", "d.a_b_c");
        check("d.ip_10.0.0.1.path", "d.ip_10_0_0_1.path");
        check("d.ip_1.2.3.4.ip_5.6.7.8", "d.ip_1_2_3_4.ip_5_6_7_8");
        check("v1.2.3", "v1.2.3");
        check("1.2.3.4567", "1_2_3_4567");
        check("é1234.5.6.7", "é1234_5_6_7");
    }

    #[test]
    fn a_long_name_is_cut_between_letters() {
        let long = "é".repeat(300);
        let name = stats_key("d", [("k", Some(&*long)), ("l", None)].into_iter());
        assert!(name.len() <= MAX_STATS_BYTES, "{}", name.len());
        assert!(name.starts_with("d.k_é"));
    }
}

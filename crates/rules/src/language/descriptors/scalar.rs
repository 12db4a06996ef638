//! Scalars in the YAML 1.1 that the reference service reads: `yes` is a bool, `010` is eight, and quotes make a text
//! of anything.

use crate::envoy::Metadata;
use crate::language::yaml::{Pairs, YamlNode, YamlValue};

pub(super) fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => Some(true),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => Some(false),
        _ => None,
    }
}

/// Parses an integer, with `_` between digits in any place.
pub(super) fn parse_integer(text: &str) -> Option<i128> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let digits = digits.replace('_', "");
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        [b'0', b'o' | b'O', ..] => (8, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, &*digits),
    };
    if !digits.starts_with(|first: char| first.is_ascii_hexdigit()) {
        return None; // a second sign
    }
    let number = i128::from_str_radix(digits, radix).ok()?;
    Some(if negative { -number } else { number })
}

/// Parses any other number.
pub(super) fn parse_float(text: &str) -> Option<f64> {
    let sign = text.trim_start_matches(['-', '+']);
    match sign {
        ".inf" | ".Inf" | ".INF" if text.starts_with('-') => return Some(f64::NEG_INFINITY),
        ".inf" | ".Inf" | ".INF" => return Some(f64::INFINITY),
        ".nan" | ".NaN" | ".NAN" => return Some(f64::NAN),
        _ => {}
    }
    let digits = text.replace('_', "");
    let numeric = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-');
    if digits.chars().all(numeric) { digits.parse().ok() } else { None }
}

/// Metadata that responses carry. The error is the line where a name is not a text or the depth is used up.
pub(super) fn metadata(node: YamlNode<'_>, depth: usize) -> Result<Metadata, u32> {
    let depth = depth.checked_sub(1).ok_or(node.line())?;
    Ok(match node.kind() {
        YamlValue::Null => Metadata::Null,
        YamlValue::Text(text) => match node.unquoted() {
            Some(plain) => plain_metadata(plain),
            None => Metadata::Text(text.into()),
        },
        YamlValue::List(items) => {
            let items = items.map(|item| metadata(item, depth));
            Metadata::List(items.collect::<Result<_, _>>()?)
        }
        YamlValue::Map(pairs) => Metadata::Map(map(pairs, depth)?),
    })
}

/// The values of a mapping, by name.
pub(super) fn map(pairs: Pairs<'_>, depth: usize) -> Result<Vec<(Box<str>, Metadata)>, u32> {
    let mut values: Vec<(Box<str>, Metadata)> = Vec::new();
    for (name, value) in pairs {
        let text = name.text().ok_or(name.line())?;
        let value = metadata(value, depth)?;
        // If a name is given twice, the last value counts.
        match values.iter_mut().find(|(known, _)| **known == *text) {
            Some((_, known)) => *known = value,
            None => values.push((text.into(), value)),
        }
    }
    Ok(values)
}

fn plain_metadata(text: &str) -> Metadata {
    if let Some(yes) = parse_bool(text) {
        return Metadata::Bool(yes);
    }
    let number = parse_integer(text).map(|whole| whole as f64);
    match number.or_else(|| parse_float(text)) {
        Some(number) => Metadata::Number(number),
        None => Metadata::Text(text.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_yaml_1_1_has_them() {
        let whole = |text| parse_integer(text).unwrap_or(-999);
        assert_eq!(["10", "1_000", "0x1f", "010", "-3", "0"].map(whole), [10, 1000, 31, 8, -3, 0]);
        assert_eq!(["", "-", "ten", "1.5", "08", "+-1", "0x"].map(parse_integer), [None; 7]);
        assert_eq!(["1.5", ".5", "1e3", "-2."].map(parse_float), [1.5, 0.5, 1000.0, -2.0].map(Some));
        assert_eq!(["1.2.3.4", "v1", "", "-", "inf", "1a"].map(parse_float), [None; 6]);
    }
}

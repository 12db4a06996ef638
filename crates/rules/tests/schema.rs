//! The schema for editors accepts every good file and rejects files of a wrong shape.
//!
//! Implements the few keywords of the schema; any other keyword fails the test.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use granit_parser::{Event, Parser, ScalarStyle};
use regex_lite::Regex;
use serde_json::{Map, Value};
use tidegate_rules::schema;

/// Parses YAML as an editor does: plain numbers and flags are numbers and flags.
fn read(text: &str) -> Value {
    let mut open: Vec<(Value, Option<String>)> = vec![(Value::Array(Vec::new()), None)];
    let mut anchors: Vec<(usize, Value)> = Vec::new();
    let mut ids = Vec::new();
    for event in Parser::new_from_str(text) {
        let (value, id) = match event.unwrap().0 {
            Event::SequenceStart(_, id, _) => {
                open.push((Value::Array(Vec::new()), None));
                ids.push(id);
                continue;
            }
            Event::MappingStart(_, id, _) => {
                open.push((Value::Object(Map::new()), None));
                ids.push(id);
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => (open.pop().unwrap().0, ids.pop().unwrap()),
            Event::Scalar(text, style, id, _) => (scalar(&text, style), id),
            Event::Alias(id) => {
                let known = anchors.iter().find(|(known, _)| *known == id);
                (known.unwrap().1.clone(), 0)
            }
            _ => continue,
        };
        anchors.push((id, value.clone()));
        let (parent, key) = open.last_mut().unwrap();
        match parent {
            Value::Array(items) => items.push(value),
            Value::Object(fields) => match key.take() {
                Some(key) => {
                    fields.insert(key, value);
                }
                None => *key = Some(value.as_str().map_or_else(|| value.to_string(), Into::into)),
            },
            _ => unreachable!("only collections are open"),
        }
    }
    open.pop().unwrap().0[0].take()
}

fn scalar(text: &str, style: ScalarStyle) -> Value {
    let plain = (style == ScalarStyle::Plain).then(|| serde_json::from_str(text).ok());
    plain.flatten().unwrap_or_else(|| Value::from(text))
}

/// The first violation by `value`, as its path.
fn violation(schema: &Value, value: &Value, root: &Value) -> Option<String> {
    let schema = schema.as_object().unwrap();
    for (keyword, wanted) in schema {
        let conforms = match keyword.as_str() {
            "$ref" => {
                let name = wanted.as_str().unwrap().trim_start_matches('#');
                violation(root.pointer(name).unwrap(), value, root).is_none()
            }
            "type" => match wanted {
                Value::Array(kinds) => kinds.iter().any(|kind| is_kind(kind, value)),
                kind => is_kind(kind, value),
            },
            "const" => wanted == value,
            "enum" => wanted.as_array().unwrap().contains(value),
            "not" => false,
            "minimum" => value.as_f64().is_none_or(|n| n >= wanted.as_f64().unwrap()),
            "maximum" => value.as_f64().is_none_or(|n| n <= wanted.as_f64().unwrap()),
            "pattern" => value.as_str().is_none_or(|text| Regex::new(wanted.as_str().unwrap()).unwrap().is_match(text)),
            "minItems" => value.as_array().is_none_or(|all| all.len() as u64 >= wanted.as_u64().unwrap()),
            "maxItems" => value.as_array().is_none_or(|all| all.len() as u64 <= wanted.as_u64().unwrap()),
            "uniqueItems" => value.as_array().is_none_or(|all| (1..all.len()).all(|i| !all[..i].contains(&all[i]))),
            "oneOf" => {
                let options = wanted.as_array().unwrap().iter();
                options.filter(|option| violation(option, value, root).is_none()).count() == 1
            }
            "anyOf" => {
                let mut options = wanted.as_array().unwrap().iter();
                options.any(|option| violation(option, value, root).is_none())
            }
            "required" => {
                let mut names = wanted.as_array().unwrap().iter();
                names.all(|name| value.get(name.as_str().unwrap()).is_some())
            }
            "items" => {
                let mut items = value.as_array().into_iter().flatten();
                let wrong = items.find_map(|item| violation(wanted, item, root));
                if wrong.is_some() {
                    return wrong;
                }
                true
            }
            "properties" | "additionalProperties" => {
                let wrong = fields_violation(schema, value, root);
                if wrong.is_some() {
                    return wrong;
                }
                true
            }
            "$schema" | "$defs" | "title" | "description" | "format" => true,
            other => panic!("unsupported schema keyword `{other}`"),
        };
        if !conforms {
            return Some(format!("{keyword} {wanted} against {value}"));
        }
    }
    None
}

fn fields_violation(schema: &Map<String, Value>, value: &Value, root: &Value) -> Option<String> {
    let known = schema.get("properties").and_then(Value::as_object);
    for (name, field) in value.as_object().into_iter().flatten() {
        let wanted = known.and_then(|known| known.get(name));
        let wrong = match wanted.or(schema.get("additionalProperties")) {
            None | Some(Value::Bool(true)) => None,
            Some(Value::Bool(false)) => Some(format!("unknown field {name}")),
            Some(wanted) => violation(wanted, field, root),
        };
        if let Some(wrong) = wrong {
            return Some(format!("{name}: {wrong}"));
        }
    }
    None
}

fn is_kind(kind: &Value, value: &Value) -> bool {
    match kind.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        other => panic!("unsupported schema type `{other}`"),
    }
}

fn check(kind: &str, file: &Path) -> Option<String> {
    let schema: Value = serde_json::from_str(schema()).unwrap();
    let text = std::fs::read_to_string(file).unwrap();
    let wrong = violation(&schema, &read(&text), &schema);
    wrong.map(|wrong| format!("{kind} {}: {wrong}", file.display()))
}

fn folder(kind: &str) -> Vec<std::path::PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/rules");
    let files = std::fs::read_dir(folder.join(kind)).unwrap();
    let files = files.map(|file| file.unwrap().path());
    files.filter(|file| file.extension().is_some_and(|end| end == "yaml")).collect()
}

#[test]
fn every_good_file_conforms_to_the_schema() {
    for file in folder("good") {
        assert_eq!(check("good", &file), None);
    }
}

#[test]
fn a_wrong_shape_violates_the_schema() {
    let seen = [
        "unknown_field",
        "unknown_algorithm",
        "rate_without_window",
        "rate_of_unknown_unit",
        "rate_missing",
        "name_with_spaces",
        "unknown_durability",
        "counting_unknown",
        "counting_with_a_life_but_exact",
        "concurrent_of_nothing",
        "priority_above_all",
        "priority_unknown_word",
        "priority_with_an_unknown_part",
        "soft_from_the_end",
        "soft_without_a_delay",
        "not_yet_charge_on",
        "version_missing",
        "unknown_top_field",
        "rates_too_many",
        "rate_with_a_tail",
        "budget_not_a_duration",
        "tier_twice",
    ];
    for file in folder("bad") {
        let name = file.file_stem().unwrap().to_string_lossy();
        if seen.contains(&&*name) {
            assert!(check("bad", &file).is_some(), "{name}");
        }
    }
}

//! Rejects environment variables that look like settings but are not.
//!
//! A misspelt variable would silently leave its setting at the default: built-in rules instead of the operator's,
//! counters of one node instead of shared ones. So it is an error at the start. Two kinds of names are ignored:
//! those that resemble no setting (`TIDEGATE_VERSION`), which belong to scripts and images, and those that
//! Kubernetes sets for a Service whose name begins with `tidegate`.

use std::ffi::OsString;

use tidegate_rules::{find_within_one_edit, suggest_name};

const PREFIX: &str = "TIDEGATE_";

/// A variable that is not a setting.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the environment variable `{}` is no setting; {advice}", name.escape_debug())]
pub(crate) struct UnknownVariableError {
    name: String,
    advice: String,
}

/// The first variable that is probably meant as one of the `settings` but is none of them. Either its whole name
/// differs from a setting by case or one letter, or it begins with `TIDEGATE_` and the rest resembles a setting or
/// has the same first word.
pub(crate) fn check(
    settings: &[&str],
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Result<(), UnknownVariableError> {
    let mut unknown: Vec<String> = Vec::new();
    for (name, value) in variables {
        let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
        let known = settings.contains(&&*name) || is_kubernetes_variable(&name, &value);
        let similar = || find_within_one_edit(&name, settings.iter().copied()).is_some();
        let is_meant = || suggestion(&name, settings).is_some() || has_first_word(&name, settings);
        if !known && (similar() || is_meant()) {
            unknown.push(name.into_owned());
        }
    }
    unknown.sort();
    let Some(name) = unknown.into_iter().next() else {
        return Ok(());
    };
    let whole = find_within_one_edit(&name, settings.iter().copied()).map(str::to_owned);
    let advice = match whole.or_else(|| suggestion(&name, settings)) {
        Some(near) => format!("write `{near}`?"),
        None => "remove it; `tidegate serve --help` lists the settings".to_owned(),
    };
    Err(UnknownVariableError { name, advice })
}

/// Whether a setting has the same first word after the prefix: `TIDEGATE_HTTP_PORT` beside `TIDEGATE_HTTP`.
fn has_first_word(name: &str, settings: &[&str]) -> bool {
    let of_name = first_word(name);
    of_name.is_some() && settings.iter().any(|setting| first_word(setting) == of_name)
}

fn first_word(name: &str) -> Option<&str> {
    name.strip_prefix(PREFIX)?.split('_').next()
}

/// The setting for a name that other programs use, or that this one used before: `TIDEGATE_REDIS_URL` is the store,
/// `TIDEGATE_CONF` the config file, `TIDEGATE_DRAIN` was the shutdown timeout.
fn setting_for_synonym(name: &str, settings: &[&str]) -> Option<String> {
    let setting = match first_word(name)? {
        "DRAIN" if name == "TIDEGATE_DRAIN" => "TIDEGATE_SHUTDOWN_TIMEOUT",
        "REDIS" | "VALKEY" => "TIDEGATE_STORE",
        "CONF" | "CONFIGURATION" => "TIDEGATE_CONFIG",
        _ => return None,
    };
    settings.contains(&setting).then(|| setting.to_owned())
}

fn suggestion(name: &str, settings: &[&str]) -> Option<String> {
    let bare = |name| str::strip_prefix(name, PREFIX);
    let known: Vec<&str> = settings.iter().filter_map(|name| bare(name)).collect();
    let near = suggest_name(bare(name)?, &known).map(|near| format!("{PREFIX}{near}"));
    near.or_else(|| setting_for_synonym(name, settings)).or_else(|| setting_with_common_prefix(name, settings))
}

/// `TIDEGATE_RESP_PASSWORD` without `_FILE`, or `TIDEGATE_STORE_URL` with an extra word.
fn setting_with_common_prefix(name: &str, settings: &[&str]) -> Option<String> {
    let begins = |long: &str, short: &str| {
        let rest = long.strip_prefix(short);
        rest.is_some_and(|rest| rest.starts_with('_'))
    };
    let longer = settings.iter().filter(|setting| begins(setting, name));
    let shorter = settings.iter().filter(|setting| begins(name, setting));
    let longer = longer.min_by_key(|setting| setting.len());
    let near = longer.or_else(|| shorter.max_by_key(|setting| setting.len()));
    near.map(|near| (*near).to_owned())
}

/// Whether Kubernetes sets a variable of this name for a Service: `NAME_SERVICE_HOST`, `NAME_SERVICE_PORT`,
/// `NAME_SERVICE_PORT_PORTNAME`, `NAME_PORT` and `NAME_PORT_80_TCP`, the last also followed by `_PROTO`, `_PORT` or
/// `_ADDR`. `NAME_PORT` holds a URL: a plain number there is a misspelt setting.
fn is_kubernetes_variable(name: &str, value: &str) -> bool {
    let is_url = ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme));
    name.starts_with(PREFIX)
        && (name.ends_with("_SERVICE_HOST")
            || name.ends_with("_SERVICE_PORT")
            || name.contains("_SERVICE_PORT_")
            || is_url && name.ends_with("_PORT")
            || name
                .match_indices("_PORT_")
                .any(|(at, separator)| name.get(at + separator.len()..).is_some_and(is_port_and_protocol)))
}

/// `80_TCP`, `80_TCP_PROTO`, `80_TCP_PORT`, `80_TCP_ADDR`.
fn is_port_and_protocol(text: &str) -> bool {
    let Some((port, rest)) = text.split_once('_') else {
        return false;
    };
    let (protocol, detail) = rest.split_once('_').unwrap_or((rest, ""));
    port.parse::<u16>().is_ok()
        && matches!(protocol, "TCP" | "UDP" | "SCTP")
        && matches!(detail, "" | "PROTO" | "PORT" | "ADDR")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: [&str; 8] = [
        "TIDEGATE_RULES",
        "TIDEGATE_STORE",
        "TIDEGATE_HTTP",
        "TIDEGATE_RESP_PASSWORD_FILE",
        "TIDEGATE_URL",
        "TIDEGATE_DATA_DIR",
        "TIDEGATE_DRAIN_DELAY",
        "TIDEGATE_SHUTDOWN_TIMEOUT",
    ];

    fn error(name: &str, value: &str) -> Option<String> {
        let variables = [("PATH", "/bin"), ("TIDEGATE_STORE", "memory"), (name, value)];
        let variables = variables.map(|(name, value)| (name.into(), value.into()));
        let checked = check(&SETTINGS, variables.into_iter());
        checked.err().map(|unknown| unknown.to_string())
    }

    #[test]
    fn a_misspelt_variable_is_rejected_with_the_setting_that_is_meant() {
        for (name, near) in [
            ("TIDEGATE_RULLES", "TIDEGATE_RULES"),
            ("TIDEGATE_STOER", "TIDEGATE_STORE"),
            ("TIDEGATE_RESP_PASWORD_FILE", "TIDEGATE_RESP_PASSWORD_FILE"),
            ("tidegate_rules", "TIDEGATE_RULES"),
            ("TIDEGTE_STORE", "TIDEGATE_STORE"),
            ("TIDEGATE__STORE", "TIDEGATE_STORE"),
            ("TIDEGATE_REDIS_URL", "TIDEGATE_STORE"),
            ("TIDEGATE_STORE_URL", "TIDEGATE_STORE"),
            ("TIDEGATE_RULES_FILE", "TIDEGATE_RULES"),
            ("TIDEGATE_HTTP_PORT", "TIDEGATE_HTTP"),
            ("TIDEGATE_RESP_PASSWORD", "TIDEGATE_RESP_PASSWORD_FILE"),
            ("TIDEGATE_DATA", "TIDEGATE_DATA_DIR"),
            ("TIDEGATE_DRAIN", "TIDEGATE_SHUTDOWN_TIMEOUT"),
        ] {
            let error = error(name, "x").unwrap_or_default();
            let want = format!("`{name}` is no setting; write `{near}`?");
            assert!(error.ends_with(&want), "{name}: {error}");
        }
        let far = error("TIDEGATE_RESP_KEY", "x").unwrap();
        assert!(far.ends_with("lists the settings"), "{far}");
    }

    /// For Services called `tidegate` and `tidegate-admin`, as the kubelet sets them.
    #[test]
    fn variables_of_kubernetes_and_of_other_programs_are_ignored() {
        for service in ["TIDEGATE", "TIDEGATE_ADMIN"] {
            for (rest, value) in [
                ("_SERVICE_HOST", "10.0.0.11"),
                ("_SERVICE_PORT", "8080"),
                ("_SERVICE_PORT_HTTP_MAIN", "8080"),
                ("_PORT", "tcp://10.0.0.11:8080"),
                ("_PORT_8080_TCP", "tcp://10.0.0.11:8080"),
                ("_PORT_8080_TCP_PROTO", "tcp"),
                ("_PORT_8080_TCP_PORT", "8080"),
                ("_PORT_8080_TCP_ADDR", "10.0.0.11"),
                ("_PORT_53_UDP", "udp://10.0.0.11:53"),
            ] {
                assert_eq!(error(&format!("{service}{rest}"), value), None, "{rest}");
            }
        }
        assert_eq!(error("TIDEGATE_URL", "x"), None, "a setting of another command");
        assert_eq!(error("RULES", "x"), None);
        for other in ["TIDEGATE_BIN", "TIDEGATE_VERSION", "TIDEGATE_COLOUR"] {
            assert_eq!(error(other, "x"), None, "{other}");
        }
        for other in ["TIDEGATE_HTTP_PORT_X_TCP", "TIDEGATE_HTTP_PORT_80_ICMP"] {
            assert!(error(other, "x").is_some(), "{other}");
        }
    }
}

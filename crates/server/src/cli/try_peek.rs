//! `tidegate try` and `tidegate peek`: check a request against a running server.

use serde_json::Value;

use super::client::{self, ServerAddress};
use super::{CheckArgs, CommandResult, Exit, OutputFormat, print_error, print_line};

/// Sends the request and prints the decision. Exits with 75 if it is denied.
pub(super) fn run(args: &CheckArgs, path: &str) -> CommandResult {
    let server = args.url.parse::<ServerAddress>().map_err(|error| (Exit::Usage, format!("--url {error}")))?;
    let response = client::post(&server, path, &args.request.body());
    let response = response.map_err(|error| (Exit::Unreachable, format!("{server}: {error}")))?;
    let decision: Value = serde_json::from_str(&response.body).unwrap_or(Value::Null);
    match args.request.output {
        OutputFormat::Json => print_line(&response.body),
        OutputFormat::Text if decision.get("allowed").is_some() => print_line(sentence(&decision)),
        OutputFormat::Text => print_error(message(&decision).unwrap_or(&response.body)),
    }
    Ok(match response.status {
        200 => Exit::Done,
        400 => Exit::Usage,
        _ if decision["allowed"] == false => Exit::Denied,
        503 => Exit::Unreachable,
        _ => Exit::Failed,
    })
}

fn message(decision: &Value) -> Option<&str> {
    decision["message"].as_str()
}

/// The decision in one line.
fn sentence(decision: &Value) -> String {
    let rule = decision["rule"].as_str();
    if decision["allowed"] == false {
        return format!("denied: {}", message(decision).unwrap_or("no reason given"));
    }
    let wait = match decision["delay_ms"].as_u64() {
        Some(delay) => format!(" after {delay} ms"),
        None => String::new(),
    };
    match rule {
        Some(rule) => {
            format!("allowed{wait}: {} of {} left under rule `{rule}`", decision["remaining"], decision["limit"])
        }
        None => format!("allowed{wait}: no rule applies"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_decision_reads_as_a_sentence() {
        let cases = [
            (json!({"allowed": true, "rule": "r", "remaining": 3, "limit": 5}), "allowed: 3 of 5 left under rule `r`"),
            (json!({"allowed": true, "rule": null}), "allowed: no rule applies"),
            (json!({"allowed": false, "message": "m"}), "denied: m"),
        ];
        for (decision, want) in cases {
            assert_eq!(sentence(&decision), want);
        }
    }
}

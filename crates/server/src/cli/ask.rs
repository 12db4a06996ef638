//! `tidegate try` and `tidegate peek`: ask a running server.

use serde_json::Value;

use super::{AskArgs, Exit, Output, client, complain, say};

/// Asks, prints, and ends with 75 if the answer is no.
pub(super) fn run(args: &AskArgs, path: &str) -> Exit {
    let reply = match client::post(&args.url, path, &args.request.body()) {
        Ok(reply) => reply,
        Err(error) => {
            complain(format_args!("{}: {error}", args.url));
            return Exit::Unreachable;
        }
    };
    let told: Value = serde_json::from_str(&reply.body).unwrap_or(Value::Null);
    match args.output {
        Output::Json => say(&reply.body),
        Output::Text if told.get("allowed").is_some() => say(sentence(&told)),
        Output::Text => complain(message(&told).unwrap_or(&reply.body)),
    }
    match reply.status {
        200 => Exit::Done,
        400 => Exit::Usage,
        _ if told["allowed"] == false => Exit::Denied,
        503 => Exit::Unreachable,
        _ => Exit::Failed,
    }
}

fn message(told: &Value) -> Option<&str> {
    told["message"].as_str()
}

/// The decision in a line.
fn sentence(told: &Value) -> String {
    let rule = told["rule"].as_str();
    if told["allowed"] == false {
        return format!("denied: {}", message(told).unwrap_or("no reason given"));
    }
    let wait = match told["delay_ms"].as_u64() {
        Some(delay) => format!(" after {delay} ms"),
        None => String::new(),
    };
    match rule {
        Some(rule) => format!(
            "allowed{wait}: {} of {} left under rule `{rule}`",
            told["remaining"], told["limit"]
        ),
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
            (
                json!({"allowed": true, "rule": "r", "remaining": 3, "limit": 5}),
                "allowed: 3 of 5 left under rule `r`",
            ),
            (
                json!({"allowed": true, "rule": null}),
                "allowed: no rule applies",
            ),
            (json!({"allowed": false, "message": "m"}), "denied: m"),
        ];
        for (told, want) in cases {
            assert_eq!(sentence(&told), want);
        }
    }
}

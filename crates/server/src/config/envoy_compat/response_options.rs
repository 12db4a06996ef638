//! The response options of a reference deployment.

use http::HeaderName;
use tidegate_rules::envoy::{ChargeOnDenial, DescriptorOptions, ZeroHits};

use super::env_values::EnvValues;
use crate::config::{EnvoyOptions, LimitHeaders, ReferenceHeaderNames};

/// How requests are decided, and the extra parts of a response.
pub(super) fn read(values: &mut EnvValues<'_>) -> EnvoyOptions {
    // The reference service charges every limit of a denied request, unless this is set.
    let denied = if values.flag("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT") {
        ChargeOnDenial::Violated
    } else {
        ChargeOnDenial::All
    };
    EnvoyOptions {
        descriptor_options: DescriptorOptions {
            charge_on_denial: denied,
            zero_hits: ZeroHits::OverAboveLimit,
            all_quota: values.flag("QUOTA_MODE"),
            all_shadow: values.flag("SHADOW_MODE"),
        },
        headers: headers(values),
        near_ratio: Some(near_ratio(values)),
        healthy_when_configured: values.flag("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED"),
        ..EnvoyOptions::default()
    }
}

fn headers(values: &mut EnvValues<'_>) -> LimitHeaders {
    let wanted = values.flag("LIMIT_RESPONSE_HEADERS_ENABLED");
    let mut name = |variable, usual: String| {
        let is_name = |text: &str| text.parse::<HeaderName>().is_ok().then(|| text.to_owned());
        let given = values.read(variable, "write the name of a header", is_name);
        given.unwrap_or(usual)
    };
    let usual = ReferenceHeaderNames::default();
    let names = ReferenceHeaderNames {
        limit: name("LIMIT_LIMIT_HEADER", usual.limit),
        remaining: name("LIMIT_REMAINING_HEADER", usual.remaining),
        reset: name("LIMIT_RESET_HEADER", usual.reset),
    };
    if wanted { LimitHeaders::Reference(Box::new(names)) } else { LimitHeaders::Off }
}

fn near_ratio(values: &mut EnvValues<'_>) -> f64 {
    let read = |text: &str| {
        let ratio: f64 = text.parse().ok()?;
        (0.0..=1.0).contains(&ratio).then_some(ratio)
    };
    let ratio = values.read("NEAR_LIMIT_RATIO", "write a number between 0 and 1", read);
    ratio.unwrap_or(0.8)
}

//! The policy of one side: from the URL, and as JSON, Rust and form fields.

use serde_json::{Map, Value, json};
use windlass_core::format_duration;
use windlass_core::retry::{Backoff, Jitter, Preset, RetryPolicy};

use crate::failure::Failure;
use crate::fields::Fields;

/// A policy as the fields of a form.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PolicyFields {
    pub(super) backoff: String,
    pub(super) base: String,
    /// The multiplier, the step or the power, whichever the backoff has.
    pub(super) growth: String,
    pub(super) max: String,
    pub(super) jitter: String,
    pub(super) ratio: String,
    pub(super) attempts: String,
}

/// The policy that the URL names for one side as JSON, and its preset if it is one.
pub(super) fn chosen(
    query: &Fields,
    key: &str,
    default: &str,
) -> (Result<Value, Failure>, Option<String>) {
    if query.get(&format!("{key}_type")).is_some() {
        return (PolicyFields::typed(query, key).to_json(), None);
    }
    let text = query.get(key).unwrap_or(default);
    if let Ok(preset) = text.parse::<Preset>() {
        let name = preset.name().to_owned();
        return (Ok(preset.policy().to_json()), Some(name));
    }
    let parsed = serde_json::from_str::<Value>(text)
        .map_err(|_| Failure::invalid("the policy must be the name of a preset or JSON"))
        .and_then(|value| {
            let policy = RetryPolicy::from_json(&value);
            policy.map_err(|error| Failure::invalid(error.to_string()))
        });
    let preset = parsed.as_ref().ok().and_then(RetryPolicy::preset);
    (
        parsed.map(|policy| policy.to_json()),
        preset.map(|preset| preset.name().to_owned()),
    )
}

impl PolicyFields {
    /// The fields as they were typed.
    pub(super) fn typed(query: &Fields, key: &str) -> Self {
        let text = |name: &str| {
            query
                .get(&format!("{key}_{name}"))
                .unwrap_or_default()
                .trim()
                .to_owned()
        };
        PolicyFields {
            backoff: text("type"),
            base: text("base"),
            growth: text("growth"),
            max: text("max"),
            jitter: text("jitter"),
            ratio: text("ratio"),
            attempts: text("attempts"),
        }
    }

    /// The fields of a policy.
    pub(super) fn of(policy: &RetryPolicy) -> Self {
        let mut fields = PolicyFields {
            attempts: policy
                .max_attempts()
                .map_or(String::new(), |limit| limit.to_string()),
            ..PolicyFields::default()
        };
        let (backoff, base, growth, max) = match policy.backoff() {
            Backoff::Constant { delay } => {
                ("constant", format_duration(*delay), String::new(), None)
            }
            Backoff::Linear { base, step, max } => (
                "linear",
                format_duration(*base),
                format_duration(*step),
                Some(max),
            ),
            Backoff::Exponential {
                base,
                multiplier,
                max,
            } => (
                "exponential",
                format_duration(*base),
                multiplier.to_string(),
                Some(max),
            ),
            Backoff::Polynomial { base, power, max } => (
                "polynomial",
                format_duration(*base),
                power.to_string(),
                Some(max),
            ),
            Backoff::Steps { delays } => {
                let delays: Vec<String> =
                    delays.iter().map(|delay| format_duration(*delay)).collect();
                ("steps", delays.join(", "), String::new(), None)
            }
        };
        fields.backoff = backoff.to_owned();
        fields.base = base;
        fields.growth = growth;
        fields.max = max.map_or(String::new(), |max| format_duration(*max));
        let (jitter, ratio) = match policy.jitter() {
            Jitter::None => ("none", None),
            Jitter::Proportional { ratio } => ("proportional", Some(ratio)),
            Jitter::Full => ("full", None),
            Jitter::Equal => ("equal", None),
            Jitter::Upward { ratio } => ("upward", Some(ratio)),
            Jitter::Decorrelated => ("decorrelated", None),
        };
        fields.jitter = jitter.to_owned();
        fields.ratio = ratio.map_or(String::new(), |ratio| ratio.to_string());
        fields
    }

    /// The policy as JSON. The server checks it.
    pub(super) fn to_json(&self) -> Result<Value, Failure> {
        let mut backoff = Map::new();
        backoff.insert("type".to_owned(), self.backoff.as_str().into());
        let mut put = |name: &str, text: &str| {
            if !text.is_empty() {
                backoff.insert(name.to_owned(), text.into());
            }
        };
        match self.backoff.as_str() {
            "constant" => put("delay", &self.base),
            "steps" => {}
            "linear" => {
                put("base", &self.base);
                put("step", &self.growth);
                put("max", &self.max);
            }
            _ => {
                put("base", &self.base);
                put("max", &self.max);
            }
        }
        match self.backoff.as_str() {
            "exponential" if !self.growth.is_empty() => {
                backoff.insert("multiplier".to_owned(), number("multiplier", &self.growth)?);
            }
            "polynomial" if !self.growth.is_empty() => {
                backoff.insert("power".to_owned(), number("power", &self.growth)?);
            }
            "steps" => {
                let delays: Vec<Value> = self
                    .base
                    .split(',')
                    .map(|delay| delay.trim().into())
                    .collect();
                backoff.insert("delays".to_owned(), delays.into());
            }
            _ => {}
        }
        let jitter = match (self.jitter.as_str(), self.ratio.as_str()) {
            ("", _) => json!("none"),
            ("proportional" | "upward", ratio) => {
                let ratio = if ratio.is_empty() { "0.2" } else { ratio };
                json!({"type": self.jitter, "ratio": number("ratio", ratio)?})
            }
            (name, _) => json!(name),
        };
        let mut policy = Map::new();
        policy.insert("backoff".to_owned(), backoff.into());
        policy.insert("jitter".to_owned(), jitter);
        if !self.attempts.is_empty() {
            let attempts: u32 = self
                .attempts
                .parse()
                .map_err(|_| Failure::invalid("attempts must be a whole number from 1 to 1000"))?;
            policy.insert("max_attempts".to_owned(), attempts.into());
        }
        let checked = RetryPolicy::from_json(&Value::Object(policy));
        let checked = checked.map_err(|error| Failure::invalid(error.to_string()))?;
        Ok(checked.to_json())
    }
}

fn number(name: &str, text: &str) -> Result<Value, Failure> {
    let number: f64 = text
        .parse()
        .map_err(|_| Failure::invalid(format!("{name} must be a number")))?;
    Ok(json!(number))
}

/// The policy as Rust.
pub(super) fn rust(policy: &RetryPolicy, preset: Option<&str>) -> String {
    let camel = |name: &str| -> String {
        let upper = |word: &str| {
            let mut letters = word.chars();
            let first = letters.next().map(|letter| letter.to_ascii_uppercase());
            first.into_iter().chain(letters).collect::<String>()
        };
        name.split(['_', '-']).map(upper).collect()
    };
    if let Some(preset) = preset {
        return format!("Preset::{}.policy()", camel(preset));
    }
    let duration = |duration: &std::time::Duration| match duration.subsec_millis() {
        0 => format!("Duration::from_secs({})", duration.as_secs()),
        _ => format!("Duration::from_millis({})", duration.as_millis()),
    };
    let backoff = match policy.backoff() {
        Backoff::Constant { delay } => {
            format!("Backoff::Constant {{ delay: {} }}", duration(delay))
        }
        Backoff::Linear { base, step, max } => format!(
            "Backoff::Linear {{ base: {}, step: {}, max: {} }}",
            duration(base),
            duration(step),
            duration(max)
        ),
        Backoff::Exponential {
            base,
            multiplier,
            max,
        } => format!(
            "Backoff::Exponential {{ base: {}, multiplier: {multiplier:?}, max: {} }}",
            duration(base),
            duration(max)
        ),
        Backoff::Polynomial { base, power, max } => format!(
            "Backoff::Polynomial {{ base: {}, power: {power:?}, max: {} }}",
            duration(base),
            duration(max)
        ),
        Backoff::Steps { delays } => {
            let delays: Vec<String> = delays.iter().map(duration).collect();
            format!("Backoff::Steps {{ delays: vec![{}] }}", delays.join(", "))
        }
    };
    let jitter = match policy.jitter() {
        Jitter::Proportional { ratio } => format!("Jitter::Proportional {{ ratio: {ratio:?} }}"),
        Jitter::Upward { ratio } => format!("Jitter::Upward {{ ratio: {ratio:?} }}"),
        Jitter::None => "Jitter::None".to_owned(),
        Jitter::Full => "Jitter::Full".to_owned(),
        Jitter::Equal => "Jitter::Equal".to_owned(),
        Jitter::Decorrelated => "Jitter::Decorrelated".to_owned(),
    };
    let limit = policy
        .max_attempts()
        .map(|limit| format!("\n    .with_max_attempts({limit})?"));
    let elapsed = policy.max_elapsed();
    let elapsed = elapsed.map(|max| format!("\n    .with_max_elapsed({})?", duration(&max)));
    format!(
        "RetryPolicy::new({backoff}, {jitter})?{}{}",
        limit.unwrap_or_default(),
        elapsed.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_survives_the_form() {
        for preset in Preset::ALL {
            let policy = preset.policy();
            if policy.max_elapsed().is_some() {
                continue;
            }
            let fields = PolicyFields::of(&policy);
            let back = RetryPolicy::from_json(&fields.to_json().unwrap()).unwrap();
            assert_eq!(back, policy, "{preset}");
        }
    }

    #[test]
    fn a_side_is_a_preset_json_or_typed_fields() {
        let query = Fields::parse(
            "b=%7B%22backoff%22%3A%7B%22type%22%3A%22constant%22%2C%22delay%22%3A%223s%22%7D%7D&c_type=exponential&c_base=8s&c_growth=2&c_max=2m&c_jitter=full&c_attempts=6",
        );
        let (preset, name) = chosen(&query, "a", "webhook");
        assert_eq!(
            (preset.unwrap(), name.as_deref()),
            (Preset::Webhook.policy().to_json(), Some("webhook"))
        );
        let (json, name) = chosen(&query, "b", "webhook");
        assert_eq!(
            (json.unwrap()["backoff"]["delay"].clone(), name),
            (json!("3s"), None)
        );
        let (typed, _) = chosen(&query, "c", "webhook");
        let typed = typed.unwrap();
        assert_eq!(typed["max_attempts"], 6);
        assert_eq!(typed["backoff"]["max"], "2m");
        for bad in [
            "a=nonsense",
            "a_type=constant&a_base=x",
            "a_type=exponential&a_base=1s&a_growth=x",
        ] {
            assert!(
                chosen(&Fields::parse(bad), "a", "webhook").0.is_err(),
                "{bad}"
            );
        }
    }

    #[test]
    fn a_policy_is_valid_rust() {
        assert_eq!(
            rust(&Preset::FullJitter.policy(), Some("full-jitter")),
            "Preset::FullJitter.policy()"
        );
        let fields = PolicyFields {
            backoff: "exponential".into(),
            base: "500ms".into(),
            growth: "2".into(),
            max: "2m".into(),
            jitter: "full".into(),
            ratio: String::new(),
            attempts: "6".into(),
        };
        let policy = RetryPolicy::from_json(&fields.to_json().unwrap()).unwrap();
        assert_eq!(
            rust(&policy, None),
            "RetryPolicy::new(Backoff::Exponential { base: Duration::from_millis(500), multiplier: 2.0, max: Duration::from_secs(120) }, Jitter::Full)?\n    .with_max_attempts(6)?"
        );
    }
}

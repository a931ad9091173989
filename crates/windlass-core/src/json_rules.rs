//! What a JSON text must keep, found by walking over all of it once; nothing of it is kept.

use std::collections::BTreeSet;
use std::fmt;

use serde::Deserializer;
use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};

/// What a JSON text must keep.
#[derive(Debug, Clone, Copy)]
pub struct JsonRules {
    /// It is not nested deeper.
    pub depth_max: usize,
    /// No object has more names than that, and none twice; not looked at if not given.
    pub names_max: Option<usize>,
    /// No text in it holds NUL characters.
    pub without_nul: bool,
}

impl JsonRules {
    /// Refuses a text that is not one JSON value, whole, by these rules.
    pub fn check(self, text: &str) -> Result<(), serde_json::Error> {
        let mut reader = serde_json::Deserializer::from_str(text);
        let walk = Walk {
            rules: self,
            depth: 0,
        };
        walk.deserialize(&mut reader)?;
        reader.end()
    }

    fn check_text<E: de::Error>(self, text: &str) -> Result<(), E> {
        if self.without_nul && text.contains('\0') {
            return Err(E::custom("text must not hold NUL characters"));
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
struct Walk {
    rules: JsonRules,
    depth: usize,
}

impl Walk {
    fn deeper<E: de::Error>(self) -> Result<Walk, E> {
        let most = self.rules.depth_max;
        if self.depth == most {
            return Err(E::custom(format!("nested deeper than {most}")));
        }
        Ok(Walk {
            depth: self.depth + 1,
            ..self
        })
    }
}

impl<'de> DeserializeSeed<'de> for Walk {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<(), E> {
        self.rules.check_text(text)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let inner = self.deeper()?;
        while items.next_element_seed(inner)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let inner = self.deeper()?;
        let mut names = BTreeSet::new();
        while let Some(name) = entries.next_key_seed(Name(self.rules))? {
            if let Some((name, most)) = name.zip(self.rules.names_max) {
                if names.len() == most {
                    let rule = format!("an object has more than {most} names");
                    return Err(de::Error::custom(rule));
                }
                if names.contains(&name) {
                    let shown: String = name.chars().take(40).collect();
                    let rule = format!("{shown:?} is given twice in one object");
                    return Err(de::Error::custom(rule));
                }
                names.insert(name);
            }
            entries.next_value_seed(inner)?;
        }
        Ok(())
    }
}

/// A name, checked as every text is; told where names are looked at.
#[derive(Clone, Copy)]
struct Name(JsonRules);

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> Result<Option<String>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Name {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Option<String>, E> {
        self.0.check_text(text)?;
        Ok(self.0.names_max.map(|_| text.to_owned()))
    }
}

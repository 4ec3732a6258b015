//! Notifications as the page tells them. Numbers go to it as text: a browser's own would lose digits.

use serde_json::{Value, json};

use crate::kafka::tail::Kept;

/// One notification; what is no notification of ours is `None`.
pub(super) fn note(kept: &Kept) -> Option<Value> {
    let record: Value = serde_json::from_slice(&kept.value).ok()?;
    let text = |name: &str| record.get(name)?.as_str().map(Value::from);
    let number = |name: &str| match record.get(name)? {
        Value::String(text) => Some(Value::from(text.as_str())),
        Value::Number(number) => Some(Value::from(number.to_string())),
        _ => None,
    };
    let mut note = json!({
        "number": kept.number,
        "symbol": text("symbol")?,
        "rule": text("rule")?,
        "trigger": text("trigger")?,
        "op": text("op")?,
        "threshold": number("threshold")?,
        "price": number("price")?,
        "at": record.get("ts")?.as_i64()?,
    });
    for (name, value) in [("previous", number("previous")), ("note", text("note"))] {
        if let Some(value) = value {
            note[name] = value;
        }
    }
    Some(note)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(value: &str) -> Kept {
        Kept { number: 7, key: "BBCA".into(), value: value.as_bytes().into(), timestamp: 0 }
    }

    #[test]
    fn numbers_come_as_text_however_they_are_written() {
        let record = r#"{"id":"t/0/2/edge/>=/a","rule":"a","symbol":"BBCA","trigger":"edge","op":">=","threshold":9500,"price":"0.1837","previous":9490.5,"ts":17,"source":{}}"#;
        let note = note(&kept(record)).unwrap();
        assert_eq!(
            (&note["threshold"], &note["price"], &note["previous"]),
            (&json!("9500"), &json!("0.1837"), &json!("9490.5"))
        );
        assert_eq!((&note["at"], &note["number"]), (&json!(17), &json!(7)));
    }

    #[test]
    fn what_is_no_notification_is_left_out() {
        for value in ["", "{}", "[1]", r#"{"symbol":"BBCA","price":1}"#] {
            assert_eq!(note(&kept(value)), None, "{value}");
        }
    }
}

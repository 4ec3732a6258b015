//! How numbers and times stand in the page's sentences.

/// `12,400`
pub(super) fn grouped(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3 + 1);
    if number < 0 {
        text.push('\u{2212}');
    }
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A time within a sentence: the page writes it in UTC and says the local one on hover.
pub(super) fn time(ms: i64) -> String {
    format!("⟦{ms}⟧")
}

/// `1 partition`, `3 partitions`
pub(super) fn counted(number: usize, what: &str) -> String {
    format!("{} {what}{}", grouped(number as i64), if number == 1 { "" } else { "s" })
}

/// `9 s`, `21 m 30 s`, `2 h 5 m`
pub(super) fn span(ms: i64) -> String {
    let seconds = ms.max(0) / 1_000;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} m {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} m", seconds / 3_600, seconds / 60 % 60),
    }
}

/// A message as a sentence begins.
pub(super) fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// `0, 3 and 7`
pub(super) fn list(numbers: &[i32]) -> String {
    match numbers {
        [] => String::new(),
        [one] => one.to_string(),
        [most @ .., last] => {
            let most: Vec<String> = most.iter().map(ToString::to_string).collect();
            format!("{} and {last}", most.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_spans_are_written_for_reading() {
        assert_eq!([0, 999, 12_400, -1_234_567].map(grouped), ["0", "999", "12,400", "−1,234,567"]);
        assert_eq!([900, 9_100, 1_290_000, 7_500_000].map(span), ["0 s", "9 s", "21 m 30 s", "2 h 05 m"]);
        assert_eq!(list(&[4, 5, 7]), "4, 5 and 7");
        assert_eq!([counted(1, "worker"), counted(2, "worker")], ["1 worker", "2 workers"]);
    }
}

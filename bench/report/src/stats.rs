//! Reducing the rounds of one measurement to one figure.

/// The median of the rounds: one disturbed round does not change it.
///
/// `None` when there are no rounds.
#[must_use]
pub fn median(rounds: &[f64]) -> Option<f64> {
    let mut sorted = rounds.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// The spread of the rounds, relative to their median: (maximum - minimum) / median.
///
/// Below about 0.1 the machine was quiet; a verdict from a much larger spread is worth little.
#[must_use]
pub fn spread(rounds: &[f64]) -> Option<f64> {
    let max = rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let least = rounds.iter().copied().fold(f64::INFINITY, f64::min);
    median(rounds).map(|middle| (max - least) / middle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_ignores_one_disturbed_round() {
        assert_eq!(median(&[10.0, 900.0, 11.0]), Some(11.0));
    }

    #[test]
    fn an_even_number_of_rounds_meets_in_the_middle() {
        assert_eq!(median(&[1.0, 3.0]), Some(2.0));
    }

    #[test]
    fn no_rounds_give_no_figure() {
        assert_eq!(median(&[]), None);
        assert_eq!(spread(&[]), None);
    }

    #[test]
    fn the_spread_is_relative_to_the_median() {
        assert_eq!(spread(&[9.0, 10.0, 12.0]), Some(0.3));
    }
}

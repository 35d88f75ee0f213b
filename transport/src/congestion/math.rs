//! Arithmetic that `core` does not have. Nothing but products and sums, so the same on every machine.

/// `base` to the power of a whole number.
pub(super) fn power(base: f64, exponent: u64) -> f64 {
    let (mut result, mut base, mut exponent) = (1.0, base, exponent);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_what_repeated_products_are() {
        for (base, exponent) in [(0.5, 0_u64), (0.5, 1), (255.0 / 256.0, 1_000), (1019.0 / 1024.0, 12_345)] {
            let mut product = 1.0;
            for _ in 0..exponent {
                product *= base;
            }
            assert!((power(base, exponent) - product).abs() < 1e-12, "{base} to the {exponent}");
        }
        assert_eq!(power(0.9, u64::MAX), 0.0);
    }
}

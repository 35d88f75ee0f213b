//! Arithmetic functions that `core` lacks. They only use sums, products and quotients, so results are equal
//! on all machines.

/// Returns `base` to the power of `exponent`.
pub(crate) fn power(base: f64, exponent: u64) -> f64 {
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

/// Returns the square root of a number from about 1e-6 to 1e9, by Newton's method, or 0 if it has none.
pub(crate) fn square_root(number: f64) -> f64 {
    if number.is_nan() || number <= 0.0 {
        return 0.0;
    }
    // Halving the exponent gives a first guess within a factor of 1.5.
    let mut root = f64::from_bits((number.to_bits() >> 1) + (1023 << 51));
    for _ in 0..6 {
        root = (root + number / root) / 2.0;
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn square_roots_are_those_of_the_standard_library() {
        for step in 0..2_000 {
            let number = 1e-6 * 1.02_f64.powi(step);
            let relative = square_root(number) / number.sqrt() - 1.0;
            assert!(relative.abs() < 1e-14, "{number}: {relative}");
        }
        assert_eq!(square_root(0.0), 0.0);
        assert_eq!(square_root(-1.0), 0.0);
        assert_eq!(square_root(f64::NAN), 0.0);
    }

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

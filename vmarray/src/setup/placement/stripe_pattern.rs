//! The striping pattern of an array: the sequence of devices that store consecutive pages.

/// Returns the device of each channel in sequence: each device as often as its channels, evenly spaced.
///
/// Source: the smooth weighted round robin of nginx's balancer.
pub(super) fn stripe_pattern(channels: &[u32]) -> Vec<usize> {
    let total: i64 = channels.iter().map(|&n| i64::from(n)).sum();
    let mut credit = vec![0_i64; channels.len()];
    (0..total)
        .map(|_| {
            for (credit, &n) in credit.iter_mut().zip(channels) {
                *credit += i64::from(n);
            }
            // Choose the device with the largest credit, and the first of several with equal credit.
            let next = (0..credit.len()).rev().max_by_key(|&i| credit[i]).unwrap_or(0);
            credit[next] -= total;
            next
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_follow_the_ratios_evenly() {
        assert_eq!(stripe_pattern(&[2, 2]), [0, 1, 0, 1]);
        assert_eq!(stripe_pattern(&[3, 1]), [0, 0, 1, 0]);
        assert_eq!(stripe_pattern(&[0, 2]), [1, 1]);
        for ratios in [vec![5, 1, 1], vec![1, 2, 3, 4], vec![7], vec![0, 9, 1]] {
            let stripe_pattern = stripe_pattern(&ratios);
            for (device, &n) in ratios.iter().enumerate() {
                assert_eq!(stripe_pattern.iter().filter(|&&d| d == device).count(), n as usize);
            }
        }
    }
}

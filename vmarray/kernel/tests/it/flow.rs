//! Tests of branches, loops, labels, returns and patterns in kernels.

use crate::harness::both;

const LIMIT: u32 = 7;
const FIRST: u8 = 3;

#[test]
fn branches_are_statements_and_values() {
    both!(|x: i32| -> i32 {
        let mut y = if x > 0 { x } else { -x };
        if y % 2 == 0 {
            y += 1;
        } else if y % 3 == 0 {
            y -= 1;
        }
        let z = if y > 1000 { y } else { return y * 2 };
        if z > 5000 {
            z / 3
        } else {
            let w = z * 2;
            w + 1
        }
    });
    both!(|x: u32| -> u32 {
        let y;
        if x & 1 == 1 {
            y = x;
        } else {
            y = x / 2;
        }
        let mut z;
        match y % 3 {
            0 => z = 1,
            _ => z = 2,
        }
        z += y;
        z
    });
}

#[test]
fn conditions_are_evaluated_as_far_as_needed() {
    both!(|x: u32| -> [u32; 3] {
        let mut calls = 0;
        let a = x > 10
            && {
                calls += 1;
                x < 100
            }
            && {
                calls += 10;
                x != 50
            };
        let b = x < 5
            || {
                calls += 100;
                x > 90
            }
            || {
                calls += 1000;
                false
            };
        [calls, a as u32, b as u32]
    });
}

#[test]
fn operands_are_evaluated_from_left_to_right() {
    both!(|x: i32| -> [i32; 4] {
        let mut a = x;
        let b = a + {
            a += 5;
            a
        } * {
            a *= 2;
            a
        };
        let t = (
            a,
            {
                a -= 1;
                a
            },
            a,
        );
        let mut c = x;
        c += {
            c += 10;
            c
        };
        let mut i = 0;
        let array = [3, 5, 7];
        let d = array[i] + {
            i = 2;
            array[i]
        };
        [b, t.0 - t.1 + t.2, c, d]
    });
}

#[test]
fn matches_know_all_patterns() {
    both!(|x: u32| -> u32 {
        match x % 20 {
            0 => 100,
            1 | 2 => 200,
            LIMIT => 300,
            8..=10 => 400,
            y if y > 15 && x > 1000 => y * 2,
            y @ 11..14 => y + 1,
            19.. => 5,
            other => other,
        }
    });
    both!(|x: i8| -> i32 {
        match (x, x > 3) {
            (i8::MIN..=-100, _) => 1,
            (-99..0, false) => 2,
            (0, _) => 3,
            (v, true) if v % 2 == 0 => v as i32,
            (_, true) => return 77,
            (1, false) => 4,
            _ => 5,
        }
    });
    both!(|x: u8| -> u8 {
        let is_even = x % 2 == 0;
        let mut y = match is_even {
            true => x / 2,
            false => x,
        };
        match x {
            0 => {}
            FIRST => y = 9,
            _ => {
                y ^= 1;
            }
        }
        y
    });
    both!(|x: f32| -> u8 {
        match x > 1.5 {
            true if x < 3.0 => 1,
            true => 2,
            false => 3,
        }
    });
}

#[test]
fn loops_count_break_and_continue() {
    both!(|x: u32| -> u32 {
        let mut sum = 0;
        for i in 0..x % 100 {
            if i % 7 == 3 {
                continue;
            }
            if sum > 1000 {
                break;
            }
            sum += i * i;
        }
        sum
    });
    both!(|x: u64| -> u64 {
        let mut n = x % 1000 + 1;
        let mut steps = 0;
        while n != 1 {
            steps += 1;
            if n % 2 == 0 {
                n /= 2;
                continue;
            }
            n = 3 * n + 1;
        }
        steps
    });
    both!(|x: u32| -> u32 {
        let mut i = x % 50;
        loop {
            i += 1;
            if i % 11 == 0 {
                break i * 2;
            }
            if i > 200 {
                return i;
            }
        }
    });
}

#[test]
fn labels_lead_out_of_several_loops() {
    both!(|x: u32| -> u32 {
        let mut count = 0;
        'rows: for i in 0..20 {
            for j in 0..i + 3 {
                count += 1;
                if (i * j + x) % 17 == 5 {
                    continue 'rows;
                }
                if count > x % 90 {
                    break 'rows;
                }
            }
            count += 100;
        }
        count
    });
    both!(|x: u32| -> u32 {
        let found = 'search: {
            for i in 1..x % 60 + 2 {
                if i * i > x % 1000 {
                    break 'search i;
                }
            }
            0
        };
        found + 1
    });
    both!(|x: u32| -> u32 {
        let value = 'outer: loop {
            let mut y = x % 30;
            while y < 40 {
                y += 3;
                if y % 5 == 0 {
                    break 'outer y;
                }
            }
            break 99;
        };
        value
    });
}

#[test]
fn ranges_of_all_kinds() {
    both!(|x: u8| -> [u32; 6] {
        let (mut a, mut b, mut c, mut d, mut e, mut f) = (0_u32, 0_u32, 0_u32, 0_u32, 0_u32, 0_u32);
        for i in 250..=x {
            a = a * 3 + i as u32;
        }
        for i in (0..x).rev() {
            b = b * 3 + i as u32;
        }
        for i in (3..=x).step_by(7) {
            c = c * 3 + i as u32;
        }
        for i in (0..x).rev().step_by(100) {
            d = d * 3 + i as u32;
        }
        for i in (0..=255_u8).step_by(x as usize % 50 + 1) {
            e = e * 3 + i as u32;
        }
        for mut i in 0..x {
            i /= 2;
            f += i as u32;
        }
        [a, b, c, d, e, f]
    });
    both!(|x: i8| -> [i32; 4] {
        let (mut a, mut b, mut c, mut d) = (0, 0, 0, 0);
        for i in x..=i8::MAX {
            a = a * 5 + i as i32;
        }
        for i in (i8::MIN..x).step_by(200) {
            b = b * 5 + i as i32;
        }
        for i in (-3..x).rev() {
            c = c * 5 + i as i32;
        }
        for i in (x..10).step_by(0 + 3) {
            d = d * 5 + i as i32;
        }
        [a, b, c, d]
    });
}

#[test]
fn short_loops_are_unrolled_with_their_exits() {
    both!(|x: u32| -> u32 {
        let mut sum = 0;
        for i in 0..8 {
            if x >> i & 1 == 0 {
                continue;
            }
            if i == 6 {
                break;
            }
            sum += 1 << i;
            for j in (0..4).rev() {
                if j == i {
                    return sum + 1000;
                }
                sum += j * (x & 3);
            }
        }
        for _ in 0..3 {
            sum ^= x;
        }
        for i in 5..2 {
            sum += i;
        }
        sum
    });
}

#[test]
fn names_may_be_used_again() {
    both!(|x: i64| -> i64 {
        let y = x;
        let x = x + 1;
        let mut z = {
            let x = x * 2;
            let y = y - x;
            x + y
        };
        let w = z;
        z += 1;
        let z = z * w;
        for x in 0..3 {
            let z = x;
            let _ = z;
        }
        x + y + z
    });
}

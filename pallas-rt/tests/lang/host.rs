//! The same text with host conditions is plain Rust: moves, early exits, deferred initialisation, borrows.
use crate::both;
use pallas_rt::prelude::*;

struct NonCopy(Vec<usize>);
fn consume(_: NonCopy) {}
fn causal() -> bool {
    true
}

#[kernel(grid = (1))]
fn host(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let mut v = vec![1usize, 2, 3];
    let name = String::from("abc");
    let w = NonCopy(vec![7]);
    let mut n = 0usize;
    // Short-circuits: `v[9]` is not evaluated.
    let flag = v.len() > 2 && v[2] == 3;
    let safe = v.len() > 9 && v[9] == 3;
    assert!(!safe && name == "abc" && "abc" == name && name < "abd".to_string());
    if flag {
        v.push(4);
        n += v.len() + w.0.len() - 1;
        drop(w)
    } else {
        consume(w);
    }
    let late;
    if n > 3 {
        late = 1
    } else {
        late = 2
    }
    let mut log = Vec::new();
    for (i, e) in v.iter().enumerate() {
        if *e == 2 {
            continue;
        }
        if i > 2 {
            log.push(format!("{i}:{e}"));
            break;
        }
    }
    assert_eq!(log, ["3:4"]);
    let s: &str = if n > 100 { &name } else { "lit" };
    let boxed: Box<dyn Fn(i32) -> i32> = if causal() { Box::new(|x| x + 1) } else { Box::new(|x| x) };
    let o: Option<u8> = if n == 4 { Some(1) } else { None };
    let mut m = 10u32;
    while m > 3 {
        m -= 2;
        if m == 6 {
            break;
        }
    }
    let got = 'a: {
        if n == 4 {
            break 'a 5;
        }
        6
    };
    let smaller = |a: &f32, b: &f32| if a < b { 1 } else { 0 };
    let mut t = x.load();
    #[unroll]
    for i in 0..3usize {
        if i == 1 {
            continue;
        }
        t = t + [1.0f32, 2.0, 4.0][i];
    }
    let r = &mut v;
    if flag {
        r.push(9)
    }
    if let Some(k) = o
        && k == 1
    {
        n += 1
    }
    match n {
        k if k > 4 => n += 1,
        _ => {}
    }
    if flag {
        let z = v;
        assert!(z.len() == 5);
        let numbers = (n + late + got + smaller(&1.0, &2.0)) as f32;
        return out.store(t + numbers + m as f32 + boxed(0) as f32 + s.len() as f32);
    }
    out.store(t)
}

#[test]
fn host_conditions_are_plain_rust() {
    let expected = [0.0, 1.0, 2.0, 3.0].map(|x| x + 5.0 + 13.0 + 6.0 + 1.0 + 3.0);
    assert_eq!(both([0.0, 1.0, 2.0, 3.0], |x| host(x)), expected);
}

/// A live shared borrow, a moved variable, labels, `?` in a closure, references held over regions.
#[kernel(grid = (1))]
fn corners(
    #[block([N] => [N], |_i| (0,))] x: In<f32>,
    #[block([N] => [N], |_i| (0,))] out: Out<f32>,
    #[fixed] flag: bool,
) {
    let mut n = 0usize;
    let r = &n;
    let yes = flag || n == 0;
    if yes {
        let k = *r;
        n = k + 5;
    }
    let v = vec![1];
    drop(v);
    if yes {
        let v = 3;
        n += v;
    }
    let mut it = vec![1, 2, 3].into_iter();
    while let Some(k) = it.next() {
        if k == 2 && yes {
            break;
        }
        n += k;
    }
    let mut left = 3;
    'outer: while left > 0 {
        left -= 1;
        for k in [1, 2] {
            if k == left {
                continue 'outer;
            }
            if left == 0 {
                break 'outer;
            }
            n += 1;
        }
    }
    let w;
    if n > 3 {
        w = String::from("x")
    } else {
        w = String::new()
    }
    let f = move || w.len();
    n += f();
    let parsed: Result<usize, String> = (|| {
        if n > 1000 {
            return Err("no".to_string());
        }
        let q: usize = "4".parse().map_err(|_| "bad".to_string())?;
        Ok(q)
    })();
    if let Ok(q) = parsed {
        n += q
    }
    let mut arr = [0usize; 3];
    for (i, a) in arr.iter_mut().enumerate() {
        if i != 1 {
            *a = i;
        }
    }
    struct S {
        a: usize,
    }
    let mut st = S { a: 1 };
    if yes {
        st.a += 1;
        arr[0] = 9;
    }
    let b: &mut usize = &mut n;
    if yes {
        *b += 1
    } else {
        *b -= 1
    }
    let o = if yes { Some("a") } else { None };
    match (o, n) {
        (Some(s), k) if s == "a" && k > 2 => n += 1,
        _ => {}
    }
    let never: u32 = if yes { 1 } else { return };
    let diverge = if n == 0 { panic!("no") } else { n };
    out.store(x.load() + (diverge + st.a + arr[0] + arr[2]) as f32 + never as f32)
}

/// What `corners` counts, by plain Rust.
fn corners_number() -> f32 {
    // 5, then 3, then 1 of the iterator; the labelled loop adds 1 (left = 2) and 0; "x"; "4"; two increments.
    let n = 5 + 3 + 1 + 1 + 1 + 4 + 1 + 1;
    (n + 2 + 9 + 2 + 1) as f32
}

#[test]
fn borrows_and_moves_are_those_of_rust() {
    assert_eq!(both([0.0, 1.0], |x| corners(x, true)), [corners_number(), corners_number() + 1.0]);
}

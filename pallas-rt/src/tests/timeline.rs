//! Spans of a process' work.
use crate::prelude::*;
use pallas_device::timeline::{Span, Timeline, write};
use serde_json::Value;

#[kernel(grid = (cdiv(N, 8)))]
fn halved(#[block([N] => [8], |i| (i,))] x: In<f32>, #[block([N] => [8], |i| (i,))] out: Out<f32>) {
    out.store(x.load() * 0.5);
}

#[test]
fn every_launch_is_a_span_of_the_file() -> Result<()> {
    let x = Client::cpu().full(&[1 << 20], 1.0f32)?;
    let timeline = Timeline::start();
    let mut y = x.clone();
    for _ in 0..3 {
        y = halved(&y)?;
    }
    assert_eq!(y.to_vec::<f32>()?[0], 0.125);
    let spans: Vec<Span> = timeline.stop().into_iter().filter(|span| span.name == "halved").collect();
    assert_eq!(spans.len(), 3);
    assert!(spans.windows(2).all(|pair| pair[0].start + pair[0].duration <= pair[1].start), "{spans:?}");

    let file = std::env::temp_dir().join(format!("pallas-timeline-{}.json", std::process::id()));
    write(&file, &spans)?;
    let text = std::fs::read_to_string(&file).expect("it was written");
    std::fs::remove_file(&file).expect("it is there");
    let json: Value = serde_json::from_str(&text).expect("JSON");
    let events = json["traceEvents"].as_array().expect("a list");
    assert_eq!(events.len(), 3);
    for event in events {
        // What the format asks of a complete event.
        assert_eq!((event["ph"].as_str(), event["cat"].as_str()), (Some("X"), Some("launch")));
        assert!(["ts", "dur"].iter().all(|key| event[key].as_f64().is_some_and(|x| x >= 0.0)), "{event}");
        assert!(["pid", "tid"].iter().all(|key| event[key].is_u64()), "{event}");
        assert_eq!(event["args"]["detail"], "grid [131072]");
    }
    halved(&x)?.block_until_ready()?;
    Ok(())
}

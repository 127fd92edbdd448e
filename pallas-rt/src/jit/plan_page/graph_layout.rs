//! Positions of the boxes of a drawn graph: layers from top to bottom, with few crossings.
//!
//! Sugiyama, Tagawa and Toda, "Methods for Visual Understanding of Hierarchical System Structures" (1981): each box has
//! a layer below all that it reads, edges over several layers get a waypoint in each of them, and boxes are ordered in
//! their layer by the mean position of their neighbours.

/// Space between boxes of a layer.
const BOX_GAP_PIXELS: f64 = 22.0;
/// Space between layers.
const LAYER_GAP_PIXELS: f64 = 34.0;
/// Number of times that the orders and positions of the boxes are improved.
const LAYOUT_SWEEPS: usize = 8;

/// The size of a box to be placed.
#[derive(Clone, Debug)]
pub(super) struct BoxSize {
    pub width: f64,
    pub height: f64,
}

/// Positions of boxes and edges in a drawing.
#[derive(Debug)]
pub(super) struct GraphLayout {
    /// By box, its upper left corner.
    pub corners: Vec<[f64; 2]>,
    /// By edge, the points that it goes through, from top to bottom.
    pub ways: Vec<Vec<[f64; 2]>>,
    pub width: f64,
    pub height: f64,
}

/// A box, or a waypoint of an edge in a layer that it crosses.
struct LayerItem {
    layer: usize,
    width: f64,
    height: f64,
    /// The horizontal position of its middle.
    x: f64,
    above: Vec<usize>,
    below: Vec<usize>,
}

/// Places boxes in layers. Edges (from, to) lead from lower box numbers to higher ones.
pub(super) fn layout_boxes(boxes: &[BoxSize], edges: &[(usize, usize)]) -> GraphLayout {
    let layer = assign_layers(boxes.len(), edges);
    let item = |(b, &layer): (&BoxSize, &usize)| LayerItem {
        layer,
        width: b.width,
        height: b.height,
        x: 0.0,
        above: vec![],
        below: vec![],
    };
    let mut items: Vec<LayerItem> = boxes.iter().zip(&layer).map(item).collect();
    let mut chains: Vec<Vec<usize>> = vec![];
    for &(from, to) in edges {
        let mut chain = vec![from];
        for layer in items[from].layer + 1..items[to].layer {
            items.push(LayerItem { layer, width: 2.0, height: 0.0, x: 0.0, above: vec![], below: vec![] });
            chain.push(items.len() - 1);
        }
        chain.push(to);
        for pair in chain.windows(2) {
            items[pair[0]].below.push(pair[1]);
            items[pair[1]].above.push(pair[0]);
        }
        chains.push(chain);
    }
    let mut rows: Vec<Vec<usize>> = vec![vec![]; items.iter().map(|item| item.layer + 1).max().unwrap_or(0)];
    items.iter().enumerate().for_each(|(i, item)| rows[item.layer].push(i));
    for row in &rows {
        center_row(&mut items, row);
    }
    for sweep in 0..LAYOUT_SWEEPS {
        let is_down = sweep % 2 == 0;
        for step in 0..rows.len() {
            let number = if is_down { step } else { rows.len() - 1 - step };
            let row = &mut rows[number];
            let wanted: Vec<f64> = row.iter().map(|&i| mean_neighbour_x(&items, i, is_down)).collect();
            let mut order: Vec<usize> = (0..row.len()).collect();
            order.sort_by(|&a, &b| wanted[a].total_cmp(&wanted[b]).then(items[row[a]].x.total_cmp(&items[row[b]].x)));
            *row = order.iter().map(|&k| row[k]).collect();
            let wanted: Vec<f64> = order.iter().map(|&k| wanted[k]).collect();
            place_row_near(&mut items, row, &wanted);
        }
    }
    let left = items.iter().map(|item| item.x - item.width / 2.0).fold(f64::INFINITY, f64::min);
    let (mut tops, mut top) = (vec![], 0.0);
    for row in &rows {
        tops.push(top);
        let height = row.iter().map(|&i| items[i].height).fold(0.0, f64::max);
        // Edges go straight down between the boxes of a layer.
        row.iter().filter(|&&i| i >= boxes.len()).for_each(|&i| items[i].height = height);
        top += height + LAYER_GAP_PIXELS;
    }
    items.iter_mut().for_each(|item| item.x -= left);
    let ends = |i: usize| {
        let LayerItem { x, layer, height, .. } = items[i];
        [[x, tops[layer]], [x, tops[layer] + height]]
    };
    let way = |chain: &Vec<usize>| {
        let points: Vec<[f64; 2]> = chain.iter().flat_map(|&i| ends(i)).collect();
        // An edge leads from the bottom of its first box to the top of its last one.
        points[1..points.len() - 1].to_vec()
    };
    GraphLayout {
        corners: items[..boxes.len()].iter().map(|item| [item.x - item.width / 2.0, tops[item.layer]]).collect(),
        ways: chains.iter().map(way).collect(),
        width: items.iter().map(|item| item.x + item.width / 2.0).fold(0.0, f64::max),
        height: (top - LAYER_GAP_PIXELS).max(0.0),
    }
}

/// The layer of each box: below all boxes with an edge to it. A box without such edges is in the layer directly above
/// its topmost reader.
fn assign_layers(box_count: usize, edges: &[(usize, usize)]) -> Vec<usize> {
    let mut layer = vec![0; box_count];
    let mut sorted = edges.to_vec();
    sorted.sort_unstable_by_key(|&(from, _)| from);
    for &(from, to) in &sorted {
        debug_assert!(from < to, "edges lead to higher numbers");
        layer[to] = layer[to].max(layer[from] + 1);
    }
    for source in 0..box_count {
        if edges.iter().all(|&(_, to)| to != source) {
            let readers = edges.iter().filter(|&&(from, _)| from == source).map(|&(_, to)| layer[to]);
            layer[source] = readers.min().map_or(0, |reader| reader - 1);
        }
    }
    layer
}

/// The mean position of an item's neighbours in the layer above (`is_down`) or below; in the other one if there are
/// none.
fn mean_neighbour_x(items: &[LayerItem], i: usize, is_down: bool) -> f64 {
    let [first, second] = if is_down { [&items[i].above, &items[i].below] } else { [&items[i].below, &items[i].above] };
    let near = if first.is_empty() { second } else { first };
    match near.len() {
        0 => items[i].x,
        n => near.iter().map(|&k| items[k].x).sum::<f64>() / n as f64,
    }
}

/// Puts the items of a row side by side, with the middle of the row at 0.
fn center_row(items: &mut [LayerItem], row: &[usize]) {
    let whole = row.iter().map(|&i| items[i].width + BOX_GAP_PIXELS).sum::<f64>();
    let mut x = -whole / 2.0;
    for &i in row {
        items[i].x = x + (items[i].width + BOX_GAP_PIXELS) / 2.0;
        x += items[i].width + BOX_GAP_PIXELS;
    }
}

/// Puts the items of a row as near to the wanted positions as their order and widths allow: items that would overlap
/// form a block, which goes to the mean of their wanted positions.
fn place_row_near(items: &mut [LayerItem], row: &[usize], wanted: &[f64]) {
    // Blocks of items side by side: the first item, the sum of the wanted positions of the block's middle, and its
    // width.
    struct OverlapBlock {
        first: usize,
        count: usize,
        sum: f64,
        width: f64,
    }
    let mut blocks: Vec<OverlapBlock> = vec![];
    for (k, &i) in row.iter().enumerate() {
        let width = items[i].width + BOX_GAP_PIXELS;
        // The left end that the item asks for.
        let mut block = OverlapBlock { first: k, count: 1, sum: wanted[k] - width / 2.0, width };
        while let Some(before) = blocks.last() {
            let left = before.sum / before.count as f64;
            if left + before.width <= block.sum / block.count as f64 {
                break;
            }
            let before = blocks.pop().expect("it was looked at");
            // The items of the second block want the left end of both to be farther left by the width of the first
            // block.
            block = OverlapBlock {
                first: before.first,
                count: before.count + block.count,
                sum: before.sum + block.sum - before.width * block.count as f64,
                width: before.width + block.width,
            };
        }
        blocks.push(block);
    }
    for block in blocks {
        let mut x = block.sum / block.count as f64;
        for &i in &row[block.first..block.first + block.count] {
            let width = items[i].width + BOX_GAP_PIXELS;
            items[i].x = x + width / 2.0;
            x += width;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Boxes of one layer lie apart, edges go down from box to box, and no coordinate is negative: of random graphs.
    #[test]
    fn boxes_lie_apart_and_edges_lead_down() {
        let mut state = 7u64;
        let mut below = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n
        };
        for count in [0, 1, 2, 5, 30, 120] {
            let boxes: Vec<BoxSize> = (0..count)
                .map(|_| BoxSize { width: 20.0 + below(90) as f64, height: 20.0 + below(30) as f64 })
                .collect();
            let mut edges: Vec<(usize, usize)> = vec![];
            for to in (1..count).flat_map(|to| [to; 2]) {
                if below(4) > 0 {
                    edges.push((below(to), to));
                }
            }
            let GraphLayout { corners, ways, width, height } = layout_boxes(&boxes, &edges);
            for (i, (a, own)) in corners.iter().zip(&boxes).enumerate() {
                assert!(
                    a[0] >= -1e-6 && a[1] >= 0.0 && a[0] + own.width <= width + 1e-6 && a[1] + own.height <= height
                );
                for (b, other) in corners.iter().zip(&boxes).skip(i + 1) {
                    let beside = a[0] + own.width <= b[0] + 1e-6 || b[0] + other.width <= a[0] + 1e-6;
                    assert!(beside || a[1] + own.height <= b[1] || b[1] + other.height <= a[1], "{i}");
                }
            }
            for (way, &(from, to)) in ways.iter().zip(&edges) {
                assert!(way.windows(2).all(|pair| pair[0][1] < pair[1][1]), "{way:?}");
                let (first, last) = (way[0], way[way.len() - 1]);
                assert_eq!(first[1], corners[from][1] + boxes[from].height);
                assert_eq!(last[1], corners[to][1]);
            }
        }
    }

    /// A tree of edges that do not cross is drawn without crossings, parents above the middle of their children.
    #[test]
    fn a_tree_has_no_crossings() {
        let boxes = vec![BoxSize { width: 50.0, height: 20.0 }; 7];
        let edges = [(0, 1), (0, 2), (2, 3), (1, 4), (2, 5), (1, 6)];
        let drawing = layout_boxes(&boxes, &edges);
        for (a, first) in drawing.ways.iter().zip(&edges) {
            for (b, second) in drawing.ways.iter().zip(&edges) {
                let is_same_row = a[0][1] == b[0][1];
                let crosses = (a[0][0] - b[0][0]) * (a[1][0] - b[1][0]) < -1e-6;
                assert!(!is_same_row || !crosses, "{first:?} {second:?}");
            }
        }
    }
}

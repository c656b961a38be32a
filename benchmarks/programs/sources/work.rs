//! Counts words in trees and hash tables, sorts floats, searches a priority queue.
//!
//! usage: PROGRAM ROUNDS    prints a checksum; 0 rounds: without end

use std::collections::{BTreeMap, BinaryHeap, HashMap};

fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    *state >> 33
}

fn once(seed: u64) -> u64 {
    let mut state = seed * 2 + 1;
    let mut tree: BTreeMap<String, u64> = BTreeMap::new();
    let mut table: HashMap<u64, Vec<u64>> = HashMap::new();
    let mut heap = BinaryHeap::new();
    let mut values = Vec::new();
    for _ in 0..10_000 {
        let number = next(&mut state);
        *tree.entry(format!("{:x}", number % 4096)).or_insert(0) += number;
        table.entry(number % 997).or_default().push(number);
        heap.push(number);
        values.push(number as f64 / 3.0);
    }
    values.sort_by(|a, b| a.partial_cmp(b).unwrap());
    let mut sum = values.iter().step_by(7).fold(0u64, |s, v| s.wrapping_mul(31) + *v as u64 % 1009);
    for (word, count) in &tree {
        sum = sum.wrapping_mul(31).wrapping_add(word.len() as u64 ^ count);
    }
    for list in table.values() {
        sum = sum.wrapping_add(list.iter().map(|n| n % 13).sum::<u64>());
    }
    while let Some(number) = heap.pop() {
        sum = sum.rotate_left(5) ^ number;
    }
    sum
}

fn main() {
    let rounds: u64 = std::env::args().nth(1).map_or(0, |text| text.parse().unwrap());
    let (mut sum, mut done) = (0u64, 0u64);
    while rounds == 0 || done < rounds {
        sum = sum.wrapping_mul(31).wrapping_add(once(done % 1000));
        done += 1;
    }
    println!("{sum:016x}");
}

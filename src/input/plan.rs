//! The wanted pointers of all shapes as one tree, so that a record is read in one pass.

use super::mapping::Mapping;
use super::pointer::{Pointer, Segment};

/// A tree of what to look for, and where to put what is found.
///
/// Found fields go to slots in frames: one frame for the record's root, and one for each trade met, whose slots
/// are those of its shape.
#[derive(Debug)]
pub(super) struct Plan {
    /// Node 0 is the record's root.
    nodes: Vec<Node>,
    /// Slots of the root's frame.
    root_slots: usize,
    /// Slots of a trade's frame, by shape.
    trade_slots: Vec<usize>,
    /// Where the fields of each shape are.
    pub(super) shapes: Vec<ShapeSlots>,
}

/// A place in the JSON.
#[derive(Debug, Default, Clone)]
pub(super) struct Node {
    /// Children of an object.
    keys: Vec<(Box<str>, NodeId)>,
    /// Children of an array that are wanted by their index.
    indexes: Vec<(usize, NodeId)>,
    /// The child that every other element of an array is.
    pub(super) each: Option<NodeId>,
    /// Shapes of which this is a trade.
    pub(super) trade_of: Vec<ShapeId>,
    /// Slots to put this value in.
    pub(super) captures: Vec<Target>,
}

/// Index of a node in its plan.
pub(super) type NodeId = usize;

/// Index of a shape in its mapping.
pub(super) type ShapeId = usize;

/// A slot of some frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) frame: FrameKind,
    pub(super) slot: usize,
}

/// Which frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameKind {
    /// The record's.
    Root,
    /// That of the trade which is being read in this shape.
    Trade(ShapeId),
}

/// Where the fields of a shape are found after the walk.
#[derive(Debug)]
pub(super) struct ShapeSlots {
    pub(super) when: Vec<Target>,
    pub(super) symbol: Target,
    pub(super) price: Target,
    pub(super) volume: Target,
    pub(super) ts: Target,
}

impl Plan {
    pub(super) const ROOT: NodeId = 0;

    pub(super) fn new(mapping: &Mapping) -> Plan {
        let mut plan =
            Plan { nodes: vec![Node::default()], root_slots: 0, trade_slots: Vec::new(), shapes: Vec::new() };
        for (shape, trade) in mapping.shapes.iter().enumerate() {
            plan.trade_slots.push(0);
            let root = plan.descend(Plan::ROOT, &trade.trades.segments);
            plan.nodes[root].trade_of.push(shape);
            let slots = ShapeSlots {
                when: trade.when.iter().map(|(pointer, _)| plan.want(shape, root, pointer)).collect(),
                symbol: plan.want(shape, root, &trade.symbol),
                price: plan.want(shape, root, &trade.price),
                volume: plan.want(shape, root, &trade.volume),
                ts: plan.want(shape, root, &trade.ts),
            };
            plan.shapes.push(slots);
        }
        plan.spread(Plan::ROOT);
        plan
    }

    pub(super) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id]
    }

    pub(super) fn root_slots(&self) -> usize {
        self.root_slots
    }

    pub(super) fn trade_slots(&self, shape: ShapeId) -> usize {
        self.trade_slots[shape]
    }

    fn want(&mut self, shape: ShapeId, trade: NodeId, pointer: &Pointer) -> Target {
        let (frame, start, slots) = if pointer.from_root {
            (FrameKind::Root, Plan::ROOT, &mut self.root_slots)
        } else {
            (FrameKind::Trade(shape), trade, &mut self.trade_slots[shape])
        };
        let target = Target { frame, slot: *slots };
        *slots += 1;
        let node = self.descend(start, &pointer.segments);
        self.nodes[node].captures.push(target);
        target
    }

    fn descend(&mut self, from: NodeId, path: &[Segment]) -> NodeId {
        path.iter().fold(from, |node, segment| match segment {
            Segment::Name(name) => self.child(node, name),
            Segment::Each => self.each(node),
        })
    }

    /// A name is a key of an object, and if it is a number an index of an array: which, the record decides.
    fn child(&mut self, node: NodeId, name: &str) -> NodeId {
        if let Some(child) = self.nodes[node].key(name) {
            return child;
        }
        let child = self.add();
        self.nodes[node].keys.push((name.into(), child));
        if let Some(index) = array_index(name) {
            self.nodes[node].indexes.push((index, child));
        }
        child
    }

    fn each(&mut self, node: NodeId) -> NodeId {
        if let Some(child) = self.nodes[node].each {
            return child;
        }
        let child = self.add();
        self.nodes[node].each = Some(child);
        child
    }

    fn add(&mut self) -> NodeId {
        self.nodes.push(Node::default());
        self.nodes.len() - 1
    }

    /// An element that is wanted by its index is also one of "each": give it what each has, so that the walk
    /// finds one child for an element.
    fn spread(&mut self, node: NodeId) {
        if let Some(each) = self.nodes[node].each {
            for (_, child) in self.nodes[node].indexes.clone() {
                self.graft(child, each);
            }
        }
        let Node { keys, each, .. } = self.nodes[node].clone();
        for child in keys.into_iter().map(|(_, child)| child).chain(each) {
            self.spread(child);
        }
    }

    fn graft(&mut self, onto: NodeId, from: NodeId) {
        let Node { keys, each, trade_of, captures, .. } = self.nodes[from].clone();
        self.nodes[onto].trade_of.extend(trade_of);
        self.nodes[onto].captures.extend(captures);
        for (name, child) in keys {
            let twin = self.child(onto, &name);
            self.graft(twin, child);
        }
        if let Some(child) = each {
            let twin = self.each(onto);
            self.graft(twin, child);
        }
    }
}

impl Node {
    /// The child under `name` in an object.
    pub(super) fn key(&self, name: &str) -> Option<NodeId> {
        self.keys.iter().find(|(key, _)| **key == *name).map(|(_, child)| *child)
    }

    /// The child at `index` in an array.
    pub(super) fn element(&self, index: usize) -> Option<NodeId> {
        self.indexes.iter().find(|(wanted, _)| *wanted == index).map(|(_, child)| *child).or(self.each)
    }

    /// Whether anything is wanted within this value.
    pub(super) fn has_children(&self) -> bool {
        !self.keys.is_empty() || self.each.is_some()
    }
}

/// RFC 6901: digits without a leading zero.
fn array_index(name: &str) -> Option<usize> {
    let canonical = name == "0" || !name.starts_with('0');
    (canonical && name.bytes().all(|byte| byte.is_ascii_digit())).then(|| name.parse().ok()).flatten()
}

//! The `[input]` section and its preset, checked and merged: where the trades of a record are and how to read
//! their fields.

use super::InputError;
use super::pointer::{Pointer, Segment};
use super::presets::{self, Order, PLAIN, Preset, Shape, VolumeSign};
use crate::config::{InputConfig, PriceZero, TsUnit};

/// How the records of the source topic are read.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) shapes: Vec<TradeMapping>,
    pub(super) ts_unit: TsUnit,
    pub(super) volume_required: bool,
    pub(super) volume_sign: VolumeSign,
    pub(super) price_zero: PriceZero,
    pub(super) order: Order,
    pub(super) max_bytes: usize,
    pub(super) max_ticks: usize,
    /// Whether a record without trades is bad; under a preset it is some other message.
    pub(super) trades_required: bool,
}

/// Where one shape of trade and its fields are.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TradeMapping {
    /// The trade, or each trade of an array.
    pub(super) trades: Pointer,
    pub(super) when: Vec<(Pointer, &'static [&'static str])>,
    pub(super) symbol: Pointer,
    pub(super) price: Pointer,
    pub(super) volume: Pointer,
    pub(super) ts: Pointer,
}

impl Mapping {
    /// A setting overrides what the preset says, in each of its shapes.
    pub(super) fn new(config: &InputConfig) -> Result<Mapping, InputError> {
        let preset = config.format.as_deref().map(presets::find).transpose()?;
        let mut shapes = Vec::new();
        for shape in preset.map_or(std::slice::from_ref(&PLAIN), |preset| preset.shapes) {
            let shape = TradeMapping::new(config, shape)?;
            // Shapes that differed only in what was overridden would yield each trade twice.
            if !shapes.contains(&shape) {
                shapes.push(shape);
            }
        }
        Ok(Mapping {
            shapes,
            ts_unit: config.ts_unit.or(preset.map(|p| p.ts_unit)).unwrap_or(TsUnit::Ms),
            volume_required: config.volume_required.unwrap_or(false),
            volume_sign: preset.map_or(VolumeSign::None, |p: &Preset| p.volume_sign),
            price_zero: config.price_zero.unwrap_or(PriceZero::Reject),
            max_bytes: config.max_record_bytes.unwrap_or(InputConfig::MAX_RECORD_BYTES) as usize,
            max_ticks: config.max_record_ticks.unwrap_or(InputConfig::MAX_RECORD_TICKS) as usize,
            order: preset.map_or(Order::OldestFirst, |p| p.order),
            trades_required: preset.is_none(),
        })
    }
}

impl TradeMapping {
    fn new(config: &InputConfig, shape: &Shape) -> Result<TradeMapping, InputError> {
        let field =
            |key, setting: &Option<String>, preset| Pointer::field(key, setting.as_deref().unwrap_or(preset));
        let mut when = Vec::with_capacity(shape.when.len());
        for condition in shape.when {
            when.push((Pointer::field("format", condition.pointer)?, condition.one_of));
        }
        Ok(TradeMapping {
            trades: match &config.records {
                Some(array) => each_of(Pointer::records("records", array)?),
                None => Pointer::records("format", shape.trades)?,
            },
            when,
            symbol: field("symbol", &config.symbol, shape.symbol)?,
            price: field("price", &config.price, shape.price)?,
            volume: field("volume", &config.volume, shape.volume)?,
            ts: field("ts", &config.ts, shape.ts)?,
        })
    }
}

fn each_of(array: Pointer) -> Pointer {
    let mut segments = array.segments;
    segments.push(Segment::Each);
    Pointer { segments, ..array }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_overrides_its_preset_in_every_shape() {
        let config = InputConfig {
            format: Some("polygon".into()),
            volume: Some("/size".into()),
            ts_unit: Some(TsUnit::Ns),
            ..InputConfig::default()
        };
        let mapping = Mapping::new(&config).unwrap();
        assert_eq!(mapping.ts_unit, TsUnit::Ns);
        assert!(mapping.shapes.iter().all(|shape| &*shape.volume.text == "/size" && &*shape.price.text == "/p"));
    }

    #[test]
    fn shapes_that_became_equal_are_one() {
        let config = InputConfig {
            format: Some("binance-trade".into()),
            records: Some("/batch".into()),
            ..InputConfig::default()
        };
        assert_eq!(Mapping::new(&config).unwrap().shapes.len(), 1);
    }

    #[test]
    fn every_preset_compiles() {
        for preset in presets::presets() {
            let config = InputConfig { format: Some(preset.name.into()), ..InputConfig::default() };
            assert_eq!(Mapping::new(&config).unwrap().shapes.len(), preset.shapes.len(), "{}", preset.name);
        }
    }
}

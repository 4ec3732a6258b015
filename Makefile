# The two commands, and what stands behind them. `make help` lists all.

CARGO ?= cargo
export CARGO

.DEFAULT_GOAL := help

.PHONY: help demo test test-compose build install fmt lint clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: install build ## a private Redis and broker, ticks, rules, candles: see it work
	@target=$${CARGO_TARGET_DIR:-target}; exec $$target/debug/tickwatch demo

test: ## all tests on a real Redis and a real broker; installs what is missing
	@scripts/test.sh

test-compose: ## the compose file with three workers, one of which is killed
	@scripts/test-compose.sh

build: ## the program, quickly built (`cargo build --release` for the one to deploy)
	$(CARGO) build --locked

install: ## redis-server, Kafka's jars and a C toolchain, where missing
	@scripts/install.sh

fmt: ## format the code
	$(CARGO) fmt

lint: ## what CI asks of the code: format and clippy
	$(CARGO) fmt --check
	$(CARGO) clippy --locked -- -D warnings
	$(CARGO) clippy --locked --all-targets --features failpoints -- -D warnings

clean: ## remove what was built and fetched
	$(CARGO) clean
	rm -rf .cache

# The two commands, and what stands behind them. `make help` lists all.

CARGO ?= cargo
export CARGO
export RUNS SEED JOBS PROFILE

BENCH ?=
BENCH_PROFILE ?= bench

.DEFAULT_GOAL := help

.PHONY: help demo test test-compose test-deb chaos bench bench-peers bench-keep bench-check bench-record peers build deb install install-browser install-ops fmt lint deny fuzz clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: install build ## a private Redis and broker, ticks, rules, candles: see it work; KEEP=1 holds it up, with the live page
	@target=$${CARGO_TARGET_DIR:-target}; exec $$target/debug/tickwatch demo $(if $(KEEP),--keep)

test: ## all tests on a real Redis and a real broker; installs what is missing
	@scripts/test.sh

test-compose: ## the compose file with three workers, one of which is killed
	@scripts/test-compose.sh

chaos: ## RUNS seeds from SEED on: everything around the service breaks, nothing is lost or doubled
	@scripts/chaos.sh

service = $(CARGO) bench --locked --profile $(BENCH_PROFILE) --bench service --
check = $(CARGO) bench --locked --profile $(BENCH_PROFILE) --bench check --

bench: install ## how fast it is, and at what cost: a table; BENCH='--only latency' for a part, `--help` for more
	$(service) $(BENCH)

bench-peers: install peers ## the same beside Kafka Streams
	$(service) --peers benches/peers $(BENCH)

bench-keep: install peers ## the same, copied to docs/
	$(service) --peers benches/peers --keep

bench-check: ## whether a tick costs over 15% more instructions than benches/check/record.json says
	@scripts/install.sh bench-check
	$(check)

bench-record: ## writes that record
	@scripts/install.sh bench-check
	$(check) --record

peers:
	@scripts/install.sh peers
	mvn -B -q -f benches/peers package </dev/null

build: ## the program, quickly built (`cargo build --release` for the one to deploy)
	$(CARGO) build --locked

install: ## redis-server, Kafka's jars and a C toolchain, where missing
	@scripts/install.sh

install-browser: ## Chromium and its driver, with which tests look at the live page; `make test` brings them too, unless TW_TEST_BROWSER=0
	@scripts/install.sh browser

install-ops: ## promtool and more, with which tests check the files under ops/ (CI: TW_TEST_OPS=1 make test)
	@scripts/install.sh ops

deb: ## a Debian package: program, service, manual, completions, configuration; in target/debian
	@scripts/deb.sh

test-deb: deb ## that package installed here, looked at, removed and purged; as root
	@scripts/test-deb.sh

fmt: ## format the code
	$(CARGO) fmt

lint: ## what CI asks of the code: format and clippy
	$(CARGO) fmt --check
	$(CARGO) clippy --locked -- -D warnings
	$(CARGO) clippy --locked --all-targets --features failpoints -- -D warnings
	$(CARGO) clippy --locked --test chaos --features failpoints -- -D warnings

deny: ## licences, sources and banned crates; then known vulnerabilities, which needs the advisory database
	@command -v cargo-deny >/dev/null || $(CARGO) install --locked cargo-deny
	$(CARGO) deny check --hide-inclusion-graph licenses bans sources
	$(CARGO) deny check --hide-inclusion-graph advisories

FUZZ_SECONDS ?= 60
fuzz: ## every reader of foreign bytes, FUZZ_SECONDS each (60); starts from fuzz/seeds, keeps what it finds in fuzz/corpus
	@command -v cargo-fuzz >/dev/null || $(CARGO) install --locked cargo-fuzz
	@for target in $$(ls fuzz/seeds); do \
	  mkdir -p fuzz/corpus/$$target; \
	  $(CARGO) fuzz run --sanitizer none $$target fuzz/corpus/$$target fuzz/seeds/$$target -- \
	    -max_total_time=$(FUZZ_SECONDS) -max_len=4096 -print_final_stats=1 || exit 1; \
	done

clean: ## remove what was built and fetched
	$(CARGO) clean
	rm -rf .cache

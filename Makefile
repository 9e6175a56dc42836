# Everything here needs Rust (with rustfmt and clippy for `lint`) and a C compiler; `test` also
# needs redis-server, nginx, curl and Python, which it installs where it is root on Debian or Ubuntu.

CARGO ?= cargo

.DEFAULT_GOAL := help
.PHONY: help run tour test lint lint-features lint-bench soak faults interop bench-embedded bench-redis bench-library bench-locks bench-server count picture book clean cargo-is-here redis-is-here java-is-here clients-are-here load-tools-are-here

help: ## Say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: cargo-is-here ## Start the server with example rules, on TOLLGATE_STORE or in this process
	if [ -z "$$TOLLGATE_RULES_FROM" ]; then \
		export TOLLGATE_RULES="$${TOLLGATE_RULES:-examples/rules/shop.yaml}"; fi; \
		TOLLGATE_ENVOY_RULES="$${TOLLGATE_ENVOY_RULES:-examples/rules/envoy}" \
		$(CARGO) run --locked --release -p tollgate-server -- serve

tour: cargo-is-here ## Show each algorithm at work on the embedded store, in virtual time
	$(CARGO) run --locked --release -p tollgate-embedded --example tour

test: cargo-is-here redis-is-here clients-are-here ## Run all tests and doctests, then the loom models of the lock
	$(CARGO) test --locked --all-features
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="$${CARGO_TARGET_DIR:-target}/loom" \
		$(CARGO) test --locked --release -p tollgate-embedded --test loom

lint: cargo-is-here lint-features ## Check formatting, clippy, features and the documentation; warnings are errors
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --all-targets --all-features -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps --all-features

lint-features: cargo-is-here ## Check each crate with each of its features alone
	CARGO="$(CARGO)" .ci/features

lint-bench: cargo-is-here ## Clippy for the bench, which builds its peers, and for the interop tests
	$(CARGO) clippy --locked -p tollgate-bench -p tollgate-interop --all-targets --all-features -- -D warnings

soak: cargo-is-here redis-is-here ## The large numbers: histories, inputs of the server's parsers, kills of it, a flood of keys
	TOLLGATE_SOAK=100 $(CARGO) test --locked --release -p tollgate-core --all-features \
		--test all oracle -- --nocapture
	$(CARGO) test --locked --release -p tollgate-redis --lib --no-run
	# On one core with its server: waking the other one costs more than a step.
	TOLLGATE_SOAK=100 taskset -c 0 $(CARGO) test --locked --release -p tollgate-redis --lib replay \
		-- --nocapture --test-threads 1
	TOLLGATE_SOAK=100 $(CARGO) test --locked --release -p tollgate --all-features --test locks \
		sections -- --nocapture
	TOLLGATE_SOAK=100 $(CARGO) test --locked --release -p tollgate-server --lib fuzz -- --nocapture
	TOLLGATE_SOAK=100 $(CARGO) test --locked --release -p tollgate-server --test server kills -- --nocapture
	$(CARGO) run --locked --release -p tollgate-embedded --example flood

faults: cargo-is-here redis-is-here ## What needs real time or a latency bound
	RUSTFLAGS="--cfg faults" CARGO_TARGET_DIR="$${CARGO_TARGET_DIR:-target}/faults" \
		$(CARGO) test --locked --release -p tollgate-redis --all-features --lib \
		latency -- --nocapture --test-threads 1
	RUSTFLAGS="--cfg faults" CARGO_TARGET_DIR="$${CARGO_TARGET_DIR:-target}/faults" \
		$(CARGO) test --locked --release -p tollgate-redis --all-features \
		--test all -- --nocapture --test-threads 1 latency overload processes
	RUSTFLAGS="--cfg faults" CARGO_TARGET_DIR="$${CARGO_TARGET_DIR:-target}/faults" \
		$(CARGO) test --locked --release -p tollgate --all-features --test locks \
		-- processes losses --nocapture --test-threads 1
	RUSTFLAGS="--cfg faults" CARGO_TARGET_DIR="$${CARGO_TARGET_DIR:-target}/faults" \
		$(CARGO) test --locked --release -p tollgate-server --all-features --test server \
		-- rules_soon lock_time --nocapture --test-threads 1

interop: cargo-is-here redis-is-here java-is-here ## Hold and wake a real Redisson client's locks, and the other way round
	mvn -q -B -f interop/redisson/pom.xml package
	$(CARGO) test --locked -p tollgate-interop --test redisson -- --nocapture --test-threads 1

bench-redis: cargo-is-here redis-is-here ## Time the Redis store beside its peers, on a server of its own
	$(CARGO) run --locked --release -p tollgate-bench --bin bench-redis

bench-locks: cargo-is-here redis-is-here ## Time locks beside their peers: alone, handed over, held by the thousand
	TOLLGATE_BENCH_PYTHON="$$(.ci/redis-py)" \
		$(CARGO) run --locked --release -p tollgate-bench --bin bench-locks

bench-library: cargo-is-here ## Time a request through all of the library, and through its HTTP layer, beside a peer
	$(CARGO) run --locked --release -p tollgate-bench --bin bench-library

bench-server: cargo-is-here redis-is-here load-tools-are-here ## Time the server's listeners beside Redis, hyper and tonic, by redis-benchmark, wrk and h2load
	$(CARGO) build --locked --release -p tollgate-server -p tollgate-bench --bin tollgate --bin bench-server
	"$${CARGO_TARGET_DIR:-target}"/release/bench-server

bench-embedded: cargo-is-here ## Time the embedded store beside its peers, and weigh a key
	$(CARGO) run --locked --release -p tollgate-bench --bin bench-embedded

count: cargo-is-here redis-is-here ## Count the instructions of a request by callgrind, and the files it goes through
	CARGO="$(CARGO)" bench/count.sh

picture: ## Draw docs/benchmarks.svg from the ratios in docs/benchmarks.md
	python3 docs/picture.py

book: ## Build the documents as a book, in target/book
	@command -v mdbook >/dev/null || { \
		echo "mdbook was not found. Install it with: cargo install mdbook" >&2; exit 1; }
	mdbook build

clean: cargo-is-here ## Remove what was built
	$(CARGO) clean

cargo-is-here:
	@command -v $(CARGO) >/dev/null || { \
		echo "cargo was not found. Install Rust 1.95 or newer from https://rustup.rs, and a C" >&2; \
		echo "compiler as its linker (Debian and Ubuntu: apt install gcc libc6-dev)." >&2; \
		exit 1; }

redis-is-here:
	@.ci/redis-is-here

clients-are-here:
	@.ci/clients-are-here

java-is-here:
	@.ci/java-is-here

load-tools-are-here:
	@.ci/load-tools-are-here

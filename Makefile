# Two commands matter: `make run` starts the service on memory, `make test` proves it works.
# Each installs what it needs and is missing.

.PHONY: run test lint bench tools clean

run:
	cargo run --release --locked --bin tidegate -- serve --rules examples/rules.yaml

test: tools lint
	scripts/test

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --all-features --locked -- -D warnings
	cargo clippy --package tidegate --lib --locked -- -D warnings
	cargo clippy --package tidegate --lib --features rules,live,http,tokio,redis,disk --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --all-features --locked

bench: tools
	bench/run

tools:
	scripts/tools

clean:
	cargo clean

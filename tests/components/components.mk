# Real servers that suites talk to, each from its ordinary package registry and locked by the files beside this one.
# Built once into .tools, by version. Where one is not to be had its suites say so and are skipped; with
# PILOT_REQUIRE_ALL that is a failure.

KUBE_VERSION := 1.34.4
CONSUL_VERSION := 1.22.3
NOMAD_VERSION := 1.10.5
EUREKA_VERSION := 2025.0.0
ZOOKEEPER_VERSION := 3.9.4

COMPONENTS := $(CURDIR)/tests/components
KUBE_APISERVER := $(TOOLS)/kube-$(KUBE_VERSION)/kube-apiserver
CONSUL := $(TOOLS)/consul-$(CONSUL_VERSION)/consul
NOMAD := $(TOOLS)/nomad-$(NOMAD_VERSION)/nomad
EUREKA := $(TOOLS)/eureka-$(EUREKA_VERSION)/eureka.jar
ZOOKEEPER := $(TOOLS)/zookeeper-$(ZOOKEEPER_VERSION)/lib

export PILOT_KUBE_APISERVER := $(KUBE_APISERVER)
export PILOT_CONSUL := $(CONSUL)
export PILOT_NOMAD := $(NOMAD)
export PILOT_EUREKA := $(EUREKA)
export PILOT_ZOOKEEPER := $(ZOOKEEPER)

.PHONY: components
components: $(KUBE_APISERVER) $(CONSUL) $(NOMAD) $(EUREKA) $(ZOOKEEPER) ## get the real API server, Consul, Nomad, Eureka and ZooKeeper into .tools/

# For the suites of registries; what is not to be had here is skipped there.
.PHONY: registries
registries:
	@for server in $(EUREKA) $(ZOOKEEPER) $(CONSUL) $(NOMAD); do \
	  $(MAKE) --no-print-directory $$server || echo "$$server is not to be had here: its suites are skipped"; \
	done

GO_BUILD := go build -trimpath -mod=readonly

$(KUBE_APISERVER):
	@echo "== building kube-apiserver $(KUBE_VERSION): about 6 minutes, once"
	cd $(COMPONENTS)/kube && $(GO_BUILD) -o $@ \
	  -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v$(KUBE_VERSION) -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=34" \
	  k8s.io/kubernetes/cmd/kube-apiserver

$(CONSUL):
	@echo "== building Consul $(CONSUL_VERSION): about 6 minutes, once"
	cd $(COMPONENTS)/consul && $(GO_BUILD) -o $@ \
	  -ldflags "-s -w -X github.com/hashicorp/consul/version.GitDescribe=$(CONSUL_VERSION)" github.com/hashicorp/consul

$(NOMAD):
	@echo "== building Nomad $(NOMAD_VERSION): about 5 minutes, once"
	cd $(COMPONENTS)/nomad && $(GO_BUILD) -o $@ -ldflags "-s -w" github.com/hashicorp/nomad

$(EUREKA):
	@echo "== getting Eureka $(EUREKA_VERSION): 94 MB, about a minute, once"
	mkdir -p $(@D)
	cp -r $(COMPONENTS)/eureka $(@D)/build
	cd $(@D)/build && mvn -q -B -DskipTests package
	mv $(@D)/build/target/eureka.jar $@
	rm -rf $(@D)/build

$(ZOOKEEPER):
	@echo "== getting ZooKeeper $(ZOOKEEPER_VERSION): 13 MB, once"
	cd $(COMPONENTS)/zookeeper && mvn -q -B dependency:copy-dependencies -DoutputDirectory=$@.part -DincludeScope=runtime
	mv $@.part $@

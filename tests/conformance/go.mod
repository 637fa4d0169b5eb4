// Istio's module, for the test data in it. Nothing of it is built.
module pilot/conformance

go 1.26

require istio.io/istio v0.0.0-20260827124520-eed52ebb66ad

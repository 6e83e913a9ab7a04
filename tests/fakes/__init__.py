"""Google Cloud as a test needs it: HTTP servers on loopback that Google's real clients and the real gcloud drive, in virtual time.

    with GoogleFakes() as fakes:
        fakes.endpoints["container"]                 # http://127.0.0.1:PORT; one port a service
        fakes.clock                                  # FakeClock: give it to the code under test; sleeping on it moves it
        fakes.capacity.reserve("demo", "res", "us-central1-b", "a4-highgpu-8g", 4)
        fakes.capacity.set_stock("a4-highgpu-8g", "us-central1-b", 0)        # stockout: instance group first, operation after 35 minutes
        fakes.capacity.set_quota("demo", "NVIDIA_B200_GPUS", 8, "us-central1")
        fakes.compute.plant("networks", "global", {"name": "shared"}, "demo")
        fakes.container.scale("cluster", "pool", 2)                           # what the cluster autoscaler does
        fakes.container.provision("cluster", "a4-highgpu-8g", "us-central1-b", 2)   # what a ComputeClass does
        fakes.container.busy("cluster", 600)                                  # GKE's own operation bars others
        fakes.fail("compute.networks.insert", 503, times=2)                   # before it takes effect
        fakes.fail("container.*.create", None, after=True)                    # it takes effect, the answer is lost
        fakes.fail("*", 503, times=None, seconds=120)                         # a storm
        fakes.fail_operation("lustre.*.create", message="internal")           # DONE is not success
        fakes.tokens.expire()                                                 # 401 until the client fetches a new token
        fakes.calls, fakes.written()                                          # the call log; without reads, for goldens
        fakes.leftovers()                                                     # paths of all that exists now

Requests are checked against the discovery documents that googleapiclient carries (Lustre: its message descriptors): unknown fields, wrong
types, unknown enum values are refused as Google refuses them. What no fake plays answers 501 and names the method. Effects come when their
virtual time has come, at the next request. Where Google's behaviour is not documented the stricter of two guesses is played.
"""

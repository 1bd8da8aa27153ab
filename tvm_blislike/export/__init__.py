"""What leaves this machine: linked libraries, bundles for boards, objects without a runtime."""

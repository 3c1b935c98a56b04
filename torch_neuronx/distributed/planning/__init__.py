"""Planning of jobs: one rank of many, without their hardware."""

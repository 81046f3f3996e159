module versionvectors

go 1.26

require (
	carvel.dev/vendir v0.43.0
	github.com/Masterminds/semver/v3 v3.5.0
	github.com/blang/semver/v4 v4.0.0
	github.com/carvel-dev/semver/v4 v4.0.1-0.20240402203627-beb83fbf25e4
	github.com/k14s/semver/v4 v4.0.1-0.20210701191048-266d47ac6115
)

require github.com/gogo/protobuf v1.3.2 // indirect

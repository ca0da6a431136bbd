// Plane is a real Kubernetes control plane in one binary, for tests: each component is a sub-command that takes the flags
// of the program of that name. Components that are linked together share most of their code, so one binary builds in
// half of the time of several, and go.sum says what is in all of them.
//
// kwok plays the nodes and their kubelets, by rules (stages) that tests/kube/plane.py writes. The real node of
// tests/kube/node.py takes its kubelet, kube-proxy and CoreDNS from here, too.
package main

import (
	"context"
	"fmt"
	"os"
	_ "time/tzdata" // CronJobs name time zones

	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
	kwokconfig "sigs.k8s.io/kwok/pkg/config"
	kwok "sigs.k8s.io/kwok/pkg/kwok/cmd"
	kwoklog "sigs.k8s.io/kwok/pkg/log"
	kwoksignals "sigs.k8s.io/kwok/pkg/utils/signals"
)

var components = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllermanager.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kube-proxy":              proxy.NewProxyCommand,
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
}

func main() {
	name := ""
	if len(os.Args) > 1 {
		name = os.Args[1]
		// Components read os.Args themselves: to them it looks as if they were called by their own name.
		os.Args = os.Args[1:]
	}
	switch {
	case name == "etcd":
		etcdmain.Main(os.Args)
	case name == "coredns":
		coremain.Run()
	case name == "containers":
		exitOn(runContainers(os.Args[1:]))
	case name == "kwok":
		os.Exit(runKwok())
	case components[name] != nil:
		os.Exit(cli.Run(components[name]()))
	case name == "kubectl":
		// In its own words: CheckErr prints the error as kubectl does, and ends the process.
		if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
			kubectlutil.CheckErr(err)
		}
	default:
		fmt.Fprintln(os.Stderr, "usage: plane etcd|kube-apiserver|kube-controller-manager|kube-scheduler|kwok|kubelet|kube-proxy|coredns|containers|kubectl [flags]")
		os.Exit(2)
	}
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// runKwok does what kwok's own main does: its logger and its configuration file are flags outside its command.
func runKwok() int {
	flags := pflag.NewFlagSet("global", pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	flags.Usage = func() {}
	ctx, _ := kwoklog.InitFlags(kwoksignals.SetupSignalContext(), flags)
	ctx, err := kwokconfig.InitFlags(ctx, flags)
	if err == nil {
		command := kwok.NewCommand(ctx)
		// Kubernetes' own --version, which is linked in here, is none that kwok's command would understand.
		command.Version = ""
		command.PersistentFlags().AddFlagSet(flags)
		err = command.ExecuteContext(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kwok:", err)
		return 1
	}
	return 0
}

// What containerd itself knows of containers, as lines of JSON: the truth that a portal's times are compared with.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	taskevents "github.com/containerd/containerd/api/events"
	eventsapi "github.com/containerd/containerd/api/services/events/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	criapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	criclient "k8s.io/cri-client/pkg"
	kubelettypes "k8s.io/kubelet/pkg/types"
)

const (
	// The kubelet writes it on every container.
	restartCount = "io.kubernetes.container.restartCount"
	callSeconds  = 30 * time.Second
	// containerd announces a start or an exit an instant before its CRI plugin has noted it.
	noticeAfter  = 5 * time.Millisecond
	noticeWithin = 10 * time.Second
)

// record is one container; times are nanoseconds since 1970, 0 for what has not happened.
type record struct {
	ID         string `json:"id"`
	PodUID     string `json:"pod_uid"`
	Namespace  string `json:"namespace"`
	Pod        string `json:"pod"`
	Name       string `json:"name"`
	Attempt    int    `json:"attempt"`
	State      string `json:"state"`
	CreatedAt  int64  `json:"created_at"`
	StartedAt  int64  `json:"started_at"`
	FinishedAt int64  `json:"finished_at"`
	ExitCode   int32  `json:"exit_code"`
	Reason     string `json:"reason"`
}

// runContainers prints every container there is; with --follow, then also each one that starts or ends, until it is killed.
// With --remove it removes all of them and their pods instead.
func runContainers(args []string) error {
	flags := flag.NewFlagSet("containers", flag.ExitOnError)
	socket := flags.String("socket", "", "containerd's socket")
	follow := flags.Bool("follow", false, "go on with what starts and ends")
	remove := flags.Bool("remove", false, "remove all pods")
	_ = flags.Parse(args)
	ctx := context.Background()
	runtime, err := criclient.NewRemoteRuntimeService(ctx, "unix://"+*socket, callSeconds, nil, false)
	if err != nil {
		return err
	}
	if *remove {
		return removeAll(ctx, runtime)
	}
	out := &printer{runtime: runtime, known: map[string]record{}}
	if *follow {
		return out.follow(ctx, *socket)
	}
	return out.all(ctx)
}

func removeAll(ctx context.Context, runtime criapi.RuntimeService) error {
	sandboxes, err := runtime.ListPodSandbox(ctx, nil)
	if err != nil {
		return err
	}
	for _, sandbox := range sandboxes {
		if err := runtime.StopPodSandbox(ctx, sandbox.Id); err != nil {
			return err
		}
		if err := runtime.RemovePodSandbox(ctx, sandbox.Id); err != nil {
			return err
		}
	}
	return nil
}

type printer struct {
	runtime criapi.RuntimeService
	lock    sync.Mutex
	known   map[string]record
}

func (p *printer) print(found record) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.known[found.ID].FinishedAt != 0 {
		return
	}
	p.known[found.ID] = found
	_ = json.NewEncoder(os.Stdout).Encode(found)
}

func (p *printer) all(ctx context.Context) error {
	containers, err := p.runtime.ListContainers(ctx, nil)
	if err != nil {
		return err
	}
	for _, container := range containers {
		found, err := p.look(ctx, container.Id)
		if status.Code(err) == codes.NotFound {
			continue
		}
		if err != nil {
			return err
		}
		p.print(found)
	}
	return nil
}

func (p *printer) look(ctx context.Context, id string) (record, error) {
	answer, err := p.runtime.ContainerStatus(ctx, id, false)
	if err != nil {
		return record{}, err
	}
	found := answer.Status
	attempt, _ := strconv.Atoi(found.Annotations[restartCount])
	return record{
		ID:         found.Id,
		PodUID:     found.Labels[kubelettypes.KubernetesPodUIDLabel],
		Namespace:  found.Labels[kubelettypes.KubernetesPodNamespaceLabel],
		Pod:        found.Labels[kubelettypes.KubernetesPodNameLabel],
		Name:       found.Labels[kubelettypes.KubernetesContainerNameLabel],
		Attempt:    attempt,
		State:      found.State.String(),
		CreatedAt:  found.CreatedAt,
		StartedAt:  found.StartedAt,
		FinishedAt: found.FinishedAt,
		ExitCode:   found.ExitCode,
		Reason:     found.Reason,
	}, nil
}

// follow listens before it lists, so that nothing is missed between the two.
func (p *printer) follow(ctx context.Context, socket string) error {
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	stream, err := eventsapi.NewEventsClient(connection).Subscribe(ctx, &eventsapi.SubscribeRequest{Filters: []string{
		`namespace==k8s.io,topic=="/tasks/start"`, `namespace==k8s.io,topic=="/tasks/exit"`,
	}})
	if err != nil {
		return err
	}
	if err := p.all(ctx); err != nil {
		return err
	}
	for {
		envelope, err := stream.Recv()
		if err != nil {
			return err
		}
		switch envelope.Topic {
		case "/tasks/start":
			var event taskevents.TaskStart
			if err := envelope.Event.UnmarshalTo(&event); err != nil {
				return err
			}
			go p.started(ctx, event.ContainerID)
		case "/tasks/exit":
			var event taskevents.TaskExit
			if err := envelope.Event.UnmarshalTo(&event); err != nil {
				return err
			}
			if event.ID == event.ContainerID { // not a command inside it
				go p.ended(ctx, &event)
			}
		}
	}
}

func (p *printer) started(ctx context.Context, id string) {
	if found, ok := p.lookUntil(ctx, id, func(found record) bool { return found.StartedAt != 0 }); ok {
		p.print(found)
	}
}

// ended takes what the CRI plugin has noted; where the kubelet has removed the container already, what the event says.
func (p *printer) ended(ctx context.Context, event *taskevents.TaskExit) {
	found, ok := p.lookUntil(ctx, event.ContainerID, func(found record) bool { return found.FinishedAt != 0 })
	if !ok {
		p.lock.Lock()
		found, ok = p.known[event.ContainerID]
		p.lock.Unlock()
		found.State = cri.ContainerState_CONTAINER_EXITED.String()
		found.FinishedAt = event.ExitedAt.AsTime().UnixNano()
		found.ExitCode = int32(event.ExitStatus)
	}
	if ok {
		p.print(found)
	}
}

// lookUntil is false for what is no container (a pod's sandbox) or none any more.
func (p *printer) lookUntil(ctx context.Context, id string, enough func(record) bool) (record, bool) {
	for end := time.Now().Add(noticeWithin); time.Now().Before(end); time.Sleep(noticeAfter) {
		found, err := p.look(ctx, id)
		if err != nil && status.Code(err) != codes.NotFound {
			fmt.Fprintln(os.Stderr, "containers:", err)
		}
		if err != nil {
			return record{}, false
		}
		if enough(found) {
			return found, true
		}
	}
	fmt.Fprintln(os.Stderr, "containers: nothing more is known of", id)
	return record{}, false
}
